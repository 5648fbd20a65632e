"""Signals, in this process: what they cut, and what they never tear."""

import os
import signal

import anyio
import pytest

from streamagent.cli.interrupts import Interrupted, Interrupts
from streamagent.cli.output import OutputError

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def press(number=signal.SIGINT):
    os.kill(os.getpid(), number)


@pytest.fixture
def interrupts():
    handling = Interrupts()
    with handling.handled():
        yield handling


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_cuts_what_waits_and_the_run_ends_with_its_code(interrupts, number):
    steps = []

    async def work():
        with interrupts.cut():
            press(number)
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()
        steps.append("closed")

    with pytest.raises(Interrupted) as caught:
        interrupts.run(work)
    assert (steps, caught.value.code) == (["closed"], 128 + number)


def test_a_signal_while_the_loop_starts_waits_for_it(interrupts, monkeypatch):
    """One that tore anyio.run left a thread or a coroutine behind."""
    start, steps = anyio.run, []

    def slow_start(*args):
        press()
        return start(*args)

    async def work():
        steps.append("opened")
        with interrupts.cut():
            await anyio.sleep_forever()
        steps.append("closed")

    monkeypatch.setattr(anyio, "run", slow_start)
    with pytest.raises(Interrupted):
        interrupts.run(work)
    assert steps == ["opened", "closed"]


def test_a_signal_outside_of_cut_ends_the_run_when_it_is_done(interrupts):
    async def work():
        press()
        await anyio.lowlevel.checkpoint()
        with interrupts.cut():
            pass
        return "done"

    with pytest.raises(Interrupted):
        interrupts.run(work)


def test_a_second_ctrl_c_breaks_through_what_does_not_wait(interrupts):
    async def work():
        press()
        press()
        pytest.fail("still here")

    with pytest.raises(Interrupted, check=lambda error: error.code == 130):
        interrupts.run(work)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_may_come_twice(interrupts, number):
    """A shell and its terminal both send SIGHUP."""
    steps = []

    async def work():
        press(number)
        press(number)
        steps.append("settled")

    with pytest.raises(Interrupted):
        interrupts.run(work)
    assert steps == ["settled"]


def test_a_ctrl_c_that_is_forgotten_does_not_end_the_run(interrupts):
    async def work():
        with interrupts.cut():
            press()
            await anyio.sleep_forever()
        interrupts.forget_ctrl_c()
        return "done"

    assert interrupts.run(work) == "done"


def test_other_signals_cannot_be_forgotten(interrupts):
    async def work():
        press(signal.SIGTERM)
        interrupts.forget_ctrl_c()

    with pytest.raises(Interrupted, check=lambda error: error.code == 143):
        interrupts.run(work)


def test_where_the_loop_stands_still_a_signal_is_raised(interrupts):
    async def work():
        with pytest.raises(Interrupted), interrupts.raised():
            press()
        return "done"

    assert interrupts.run(work) == "done"


def test_a_signal_that_waits_is_raised_before_the_loop_stands_still(interrupts):
    async def work():
        press(signal.SIGTERM)
        with pytest.raises(Interrupted), interrupts.raised():
            pytest.fail("not raised")

    with pytest.raises(Interrupted):
        interrupts.run(work)


@pytest.mark.parametrize("number", SIGNALS)
def test_without_a_loop_a_signal_is_raised(interrupts, number):
    with pytest.raises(Interrupted, check=lambda error: error.code == 128 + number):
        press(number)


def test_a_terminal_that_hung_up_is_no_error_of_the_output(interrupts):
    async def work():
        press(signal.SIGHUP)
        raise OutputError(5, "Input/output error")

    with pytest.raises(Interrupted, check=lambda error: error.code == 129):
        interrupts.run(work)


def test_output_that_fails_without_a_signal_is_an_error(interrupts):
    async def work():
        raise OutputError(28, "No space left on device")

    with pytest.raises(OutputError):
        interrupts.run(work)


def test_what_is_ignored_stays_ignored_and_the_rest_is_restored():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with Interrupts().handled():
            press(signal.SIGHUP)
            assert signal.getsignal(signal.SIGINT) != interrupt
        assert signal.getsignal(signal.SIGINT) == interrupt
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
