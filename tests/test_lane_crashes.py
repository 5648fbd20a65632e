"""On each lane, over real HTTP: the process is killed, the provider breaks off, the user leaves."""

import subprocess
import sys
from contextlib import AsyncExitStack

import anyio
import pytest

from streamagent import Agent, MemoryStore, ModelSettings, Pipeline, Runtime, SqliteStore, persist, tool, tool_dispatch
from streamagent.testing.provider import call, finish, sse, text
from tests.models.lanes import KEY, LANES, NAMES, NOISE
from tests.models.raw import Play, framed, head, raw_provider
from tests.models.streams import EVENTS, good
from tests.scripted import check_rows

pytestmark = [pytest.mark.anyio, NOISE]

ENDS = 60  # seconds after which something hangs, on any machine
GOOD = good(b"".join(sse(text("Here "), text("again."), finish("stop"))))


@pytest.fixture(params=[("asyncio", {"use_uvloop": True})], ids=["uvloop"])
def anyio_backend(request):
    return request.param


@pytest.fixture(params=LANES)
def lane(request):
    return request.param


def begun(*chunks, ending="hang"):
    """Make a response of which these chunks have come, and no more; one that has all of them ends with `keep`."""
    if ending == "keep":
        return good(b"".join(sse(*chunks)))
    _, data = framed(b"".join(sse(*chunks, done=False)), "chunked")
    return Play((head(**EVENTS, transfer_encoding="chunked") + data.removesuffix(b"0\r\n\r\n"),), ending)


def opener(index):
    return call("", index=index, id=f"c{index}", name="ship")


SCENES = {
    "text": (begun(text("half "), text("an "), text("answer ")), {"text text half an answer "}),
    "arguments": (begun(text("so "), opener(0), call('{"place": "K')), {'arguments tool_call {"place": "K'}),
    "tool": (
        begun(
            *(opener(0), opener(1), call('{"place": "A"}'), call('{"place": "B"}', index=1), finish("tool_calls")),
            ending="keep",
        ),
        {"tool running A", "tool running B"},
    ),
}


def kill_when(path, lane, urls, lines):
    """Let a child answer until it has printed all of these lines; kill it."""
    scenes = [f"{scene}={url}" for scene, url in urls.items()]
    command = [sys.executable, "-m", "tests.crashing_lanes", str(path), lane, *scenes]
    missing = set(lines)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        while missing:
            line = child.stdout.readline()
            assert line, f"ended without {missing}"
            missing.discard(line.rstrip("\n"))
        child.kill()


@pytest.mark.timeout(240)  # it imports LiteLLM in another process, on any machine
async def test_a_process_is_killed_and_the_next_one_marks_closes_and_answers(lane, tmp_path):
    lines = set().union(*(lines for _, lines in SCENES.values()))
    async with AsyncExitStack() as stack:
        urls = {scene: (await stack.enter_async_context(raw_provider(play))).url for scene, (play, _) in SCENES.items()}
        await anyio.to_thread.run_sync(kill_when, tmp_path / "s.db", lane, urls, lines)
    stored = {}
    async with raw_provider(GOOD) as provider, Runtime(store=SqliteStore(tmp_path / "s.db")) as runtime:
        agent = Agent(LANES[lane](NAMES[lane], api_base=provider.url, api_key=KEY), tools=[refuse])
        for scene in SCENES:
            async with agent.session(scene, runtime=runtime) as session:
                assert (await session.ask("And now?")).text == "Here again."
            stored[scene] = await check_rows(runtime.store, scene)
    assert [(m.type, m.content, m.query) for m in stored["text"][1:2]] == [
        ("text", "half an answer ", {"cut": "crashed"})
    ]
    assert stored["text"][2].query["error"]["kind"] == "interrupted"
    [result] = [m for m in stored["arguments"] if m.type == "tool_result"]
    assert result.content == "Not executed: the run broke off before this call began."
    results = [m for m in stored["tool"] if m.type == "tool_result"]
    assert [m.query["id"] for m in results] == ["c0", "c1"]
    assert all("outcome is unknown" in m.content for m in results)


@tool(name="ship")
async def refuse(place: str) -> str:
    """Ship something, which must not be."""
    raise AssertionError(place)


@tool(name="ship")
async def ship(place: str) -> str:
    """Ship something."""
    return f"shipped to {place}"


ANSWER = [
    *(text("I "), text("ship."), opener(0), call('{"pla'), opener(1), call('ce": "A"}')),
    *(call('{"place": "B"}', index=1), finish("tool_calls")),
]


def agent_at(lane, provider, store):
    model = LANES[lane](NAMES[lane], api_base=provider.url, api_key=KEY)
    pipeline = Pipeline(reply=[tool_dispatch([ship]), persist(lag_ms=0)])
    return Agent(model, tools=[ship], pipeline=pipeline, settings=ModelSettings(retries=0), store=store)


@pytest.mark.parametrize("ending", ["eof", "reset"])
@pytest.mark.parametrize("border", range(len(ANSWER)))
async def test_a_provider_that_breaks_off_at_a_border_leaves_a_session_that_goes_on(lane, border, ending):
    async with raw_provider(GOOD) as provider, Runtime(store=MemoryStore()) as runtime:
        provider.plays.append(begun(*ANSWER[:border], ending=ending))
        agent = agent_at(lane, provider, None)
        async with agent.session("s", runtime=runtime) as session:
            cut = await session.ask("Go.")
            assert (await session.ask("And now?")).text == "Here again."
        rows = await check_rows(runtime.store)
    assert (cut.reason, cut.error["kind"] in ("truncated", "connection")) == ("error", True)
    assert "I ship.".startswith(cut.text)
    assert all(row.content.startswith("Not executed") for row in rows if row.type == "tool_result")


async def leave(session, reply, reached):
    async for message in reply:
        if message.role == "assistant" and message.content:
            reached.set()
            break
    await reply.aclose()


async def cancel_task(session, reply, reached):
    async with anyio.create_task_group() as tasks:

        async def read():
            async for message in reply:
                if message.role == "assistant" and message.content:
                    reached.set()

        tasks.start_soon(read)
        await reached.wait()
        tasks.cancel_scope.cancel()


async def cancel_session(session, reply, reached):
    async with anyio.create_task_group() as tasks:

        async def stop():
            await reached.wait()
            assert await session.cancel()

        tasks.start_soon(stop)
        async for message in reply:
            if message.role == "assistant" and message.content:
                reached.set()


@pytest.mark.parametrize("how", [leave, cancel_task, cancel_session], ids=lambda how: how.__name__)
@pytest.mark.parametrize("border", [1, 2, 4, 6])
async def test_an_answer_that_is_cut_by_its_reader_leaves_no_connection(lane, border, how):
    async with raw_provider(GOOD) as provider, Runtime(store=MemoryStore()) as runtime:
        provider.plays.append(begun(*ANSWER[:border]))
        agent = agent_at(lane, provider, None)
        with anyio.fail_after(ENDS):
            async with agent.session("s", runtime=runtime) as session:
                await how(session, session.ask("Go."), anyio.Event())
                await provider.quiet()
                assert (await session.ask("And now?")).text == "Here again."
        rows = await check_rows(runtime.store)
    assert all(row.query["is_error"] for row in rows if row.type == "tool_result")
