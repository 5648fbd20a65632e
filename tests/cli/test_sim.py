"""`streamagent sim`: what it prints of lives that end well, and how a violation is repeated."""

import pytest

from .programs import invoke

SHOP = '''
from streamagent import Agent, Pipeline, persist, tool, tool_dispatch


@tool
async def stock(product: str) -> int:
    """Units of a product in stock."""
    return 15


async def shout(stream):
    async for message in stream:
        yield message


agent = Agent("mock", tools=[stock], pipeline=Pipeline(reply=[tool_dispatch([stock]), persist(), shout]))
'''
LOUD = SHOP.replace("yield message", "yield replace(message, content=message.content.upper())")
LOUD = "from dataclasses import replace\n" + LOUD


@pytest.fixture(autouse=True)
def _targets(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "loud.py").write_text(LOUD)


def test_lives_that_end_well_are_counted():
    result = invoke("sim", "shop.py", "--seeds", "5")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("5 lives, ")
    assert result.stdout.endswith(" rows, no violation\n")


def test_the_same_seeds_print_the_same():
    first, again = (invoke("sim", "shop.py", "--seed", "7", "-v") for _ in range(2))
    assert (first.stdout, first.stderr) == (again.stdout, again.stderr)
    assert "1: store.enqueue 1 before\n" in first.stderr
    assert first.stdout.startswith("seed 7: ")
    assert "\n1 life, " in first.stdout


@pytest.mark.parametrize("model", ["mock", "own"])
def test_another_model_may_answer_and_nothing_needs_to_fail(model):
    result = invoke("sim", "shop.py", "--seeds", "3", "--faults", "", "--model", model, "-v")
    assert result.exit_code == 0, result.output
    assert "no fault" in result.stdout


def test_a_violation_is_shown_with_the_command_that_repeats_it():
    result = invoke("sim", "loud.py", "--faults", "leave,crash", "--model", "mock")
    assert result.exit_code == 1
    assert "\nI3: shown was " in result.stdout
    seed = result.stdout.partition("seed ")[2].partition(",")[0]
    command = f"streamagent sim loud.py --seed {seed} --faults 'leave,crash' --model mock"
    assert result.stdout.endswith(f"\nto repeat it: {command}\n")
    again = invoke("sim", "loud.py", "--seed", seed, "--faults", "leave,crash", "--model", "mock")
    assert again.exit_code == 1
    assert again.stdout.startswith(f"seed {seed}, after ")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["nowhere.py"], "there is no file 'nowhere.py'"),
        (["shop.py", "--faults", "flood"], "no faults like 'flood'"),
        (["shop.py", "--model", "openai/gpt"], "seeded, mock or own, not 'openai/gpt'"),
        (["shop.py", "--seeds", "0"], "'--seeds'"),
    ],
)
def test_what_it_does_not_know_is_refused(args, text):
    result = invoke("sim", *args)
    assert result.exit_code == 2
    assert text in result.stderr
