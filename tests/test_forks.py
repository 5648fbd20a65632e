"""Forks of sessions: at rest, in the middle of an answer, between a call and its result."""

import anyio
import pytest

from streamagent import Agent, Message, Runtime, SessionClosed, tool
from streamagent.errors import ConfigError, ConflictError
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, rows, stock, text

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(either_store):
    async with Runtime(store=either_store) as runtime:
        yield runtime


def session_of(runtime, *turns, tools=(stock,)):
    return Agent(ScriptedModel(*turns), tools=tools).session("s", runtime=runtime)


async def continued(runtime, fork, prompt="Go on."):
    """Ask a fork something; return the context that its model was given, and the fork's rows."""
    model = ScriptedModel(answer("On."))
    async with Agent(model).session(fork, runtime=runtime) as session:
        await session.ask(prompt)
    return model.contexts[0], await check_rows(runtime.store, fork)


async def test_a_fork_at_rest_goes_on_from_there(runtime):
    async with session_of(runtime, answer("One."), answer("Two.")) as session:
        await session.ask("One?")
        fork = await session.fork()
        await session.ask("Two?")
        before = await rows(runtime.store)
        context, stored = await continued(runtime, fork)
        assert await rows(runtime.store) == before
    assert [m.content for m in context] == ["One?", "One.", "", "Go on."]
    assert [m.content for m in stored] == ["One?", "One.", "", "Go on.", "On.", ""]
    assert {m.session for m in stored} == {fork}


async def test_an_earlier_point_may_be_asked_again(runtime):
    async with session_of(runtime, answer("One."), answer("Two.")) as session:
        await session.ask("One?")
        await session.ask("Two?")
        assert await session.fork("again", at=3) == "again"
        context, _ = await continued(runtime, "again", "Two, but short?")
    assert [m.content for m in context] == ["One?", "One.", "", "Two, but short?"]


async def test_a_fork_in_the_middle_of_an_answer_has_what_was_said_and_says_that_it_was_cut(runtime):
    async with session_of(runtime, answer("Fif", "teen."), answer("Done.")) as session:
        async for message in session.ask("How many?"):
            if message.content == "Fif":
                fork = await session.fork()
        context, stored = await continued(runtime, fork)
        assert (await rows(runtime.store))[1] == (2, "assistant", "text", "Fifteen.")
    assert [m.content for m in context] == ["How many?", "Fif", "", "Go on."]
    assert (stored[1].query, stored[2].query["error"]["kind"]) == ({"cut": "forked"}, "forked")
    assert stored[2].prev == stored[1].id


async def test_a_fork_while_a_tool_runs_closes_the_call_for_itself_alone(runtime):
    forks = []

    @tool
    async def look() -> str:
        """Fork the session that asks."""
        forks.append(await session.fork())
        return "15"

    async with session_of(runtime, calls(call("look")), answer("Done."), tools=[look]) as session:
        assert (await session.ask("Look.")).text == "Done."
        _, stored = await continued(runtime, forks[0])
        await check_rows(runtime.store)
    result = next(m for m in stored if m.type == "tool_result")
    assert (result.query["cut"], result.query["is_error"]) == ("forked", True)
    assert result.content.startswith("Not known here")


@pytest.mark.parametrize("at", range(1, 11))
async def test_a_fork_at_any_row_is_a_valid_session(runtime, at):
    turns = calls(*text("Two cal", "ls."), call("stock", "c1", product="a"), call("stock", "c2", product="b"))
    async with session_of(runtime, turns, answer("Fifteen.")) as session:
        await session.ask("How many?")
        original = await check_rows(runtime.store)
        await session.fork("fork", at=min(at, len(original)))
        context, stored = await continued(runtime, "fork")
        assert await check_rows(runtime.store) == original
    assert [m.id for m in stored[: min(at, len(original))]] == [m.id for m in original[:at]]
    asked = [m.query["id"] for m in context if m.type == "tool_call"]
    assert [m.query["id"] for m in context if m.type == "tool_result"] == asked


async def test_forks_run_beside_their_parent(runtime):
    async with Agent("mock").session("s", runtime=runtime) as session:
        await session.ask("One?")
        async with anyio.create_task_group() as tasks:
            for n in range(5):
                await session.fork(f"fork-{n}")
                tasks.start_soon(continued, runtime, f"fork-{n}", f"And {n}?")
            await session.ask("Two?")
        for n in range(5):
            assert (await rows(runtime.store, f"fork-{n}"))[3][3] == f"And {n}?"


async def test_a_fork_gets_an_id_of_its_own_when_none_is_given(runtime):
    async with Agent("mock").session("s", runtime=runtime) as session:
        await session.ask("One?")
        assert len({await session.fork(), await session.fork(), "s"}) == 3


@pytest.mark.parametrize("new", ["", "x" * 257, "a\nb"])
async def test_an_id_that_cannot_be_one_is_refused(runtime, new):
    async with Agent("mock").session("s", runtime=runtime) as session:
        await session.ask("One?")
        with pytest.raises(ConfigError, match="session id"):
            await session.fork(new)
        assert await session.fork("x" * 256) == "x" * 256


async def test_refusals_name_what_is_wrong(runtime):
    async with Agent("mock").session("s", runtime=runtime) as session:
        with pytest.raises(ConfigError, match="'s' has no messages"):
            await session.fork("f")
        await session.ask("One?")
        with pytest.raises(ConfigError, match="messages 1 to 3; it cannot be forked at 4"):
            await session.fork("f", at=4)
        with pytest.raises(ConflictError, match="'s' exists"):
            await session.fork("s")
    with pytest.raises(SessionClosed):
        await session.fork("f")


async def test_a_fork_whose_last_row_is_a_late_cancel_is_at_rest(runtime):
    async with session_of(runtime, answer("One."), answer("Two.")) as session:
        await session.ask("One?")
        await runtime.store.enqueue("s", Message(role="user", type="cancel"))
        await session.ask("Two?")
        fork = await session.fork(at=4)
    assert (await runtime.store.unfinished(fork)).at_rest
    _, stored = await continued(runtime, fork)
    assert [m.type for m in stored] == ["text", "text", "stop", "cancel", "text", "text", "stop"]
