"""Following sessions: by several viewers, from other processes, and how it ends."""

import gc
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest
from anyio.to_thread import run_sync
from hypothesis import given
from hypothesis import strategies as st

from streamagent import (
    Agent,
    ConfigError,
    Cursor,
    CursorError,
    CursorGone,
    FallbackModel,
    MemoryStore,
    Message,
    Runtime,
    SlowConsumer,
    SqliteStore,
    fold,
    follow,
    tool,
)
from streamagent.testing.contract.following import WIDE, seen, stored
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock, text

pytestmark = pytest.mark.anyio
ASYNCIO = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)


@pytest.fixture
async def runtime(either_store):
    async with Runtime(store=either_store) as runtime:
        yield runtime


async def collect(followed, into=None):
    """Follow to the end; `into` gets each fragment when it comes."""
    into = [] if into is None else into
    async for message in followed:
        into.append(message)
    return into


# cursors


@pytest.mark.parametrize("text", ["0", "12", "12:340", "12@9c0dd1e2", "12:340@9c0dd1e2", f"{2**63 - 1}:{2**63 - 1}"])
def test_a_cursor_is_read_as_it_was_written(text):
    assert str(Cursor.parse(text)) == text


@pytest.mark.parametrize(
    "place",
    [
        "-1",
        "1:",
        ":1",
        "1:-1",
        "1.5",
        "1@",
        "1@9C0DD1E2",
        "1@9c0dd1e",
        " 1",
        "1\n",
        "\u0661",
        "9" * 5000,
        str(2**63),
        "0:" + str(2**63),
    ],
)
def test_what_is_no_cursor_is_refused(place):
    with pytest.raises(CursorError):
        Cursor.of(place)


@pytest.mark.parametrize("number", [-1, 2**63, 1.0, True, "1"])
def test_a_number_that_no_session_has_is_refused(number):
    with pytest.raises(CursorError, match="from 0 to"):
        Cursor(number)
    with pytest.raises(CursorError, match="from 0 to"):
        Cursor(0, number)


def test_places_are_given_as_cursors_texts_and_numbers():
    assert [Cursor.of(place) for place in (None, "", 0, "0", Cursor())] == [Cursor()] * 5
    assert [Cursor.of(place) for place in (7, "7", "7@00000000", Cursor(7))] == [Cursor(7)] * 4


def test_later_places_are_greater():
    assert Cursor() < Cursor(0, 1) < Cursor(0, 2) < Cursor(1) < Cursor(1, 1) < Cursor(10)


def test_the_place_behind_a_message_counts_bytes():
    opened = Message(id="m", sequence=3, content="ü水", more=True)
    place = Cursor(2).behind(opened)
    assert (place.sequence, place.offset) == (2, 5)
    assert place.behind(replace(opened, content="🐟")).offset == 9
    assert place.behind(replace(opened, content="", more=False)) == Cursor(3)
    assert Cursor(1, 7).behind(opened).offset == 5  # of an earlier message


def test_it_ends_at_rest_or_not_at_all():
    with pytest.raises(ConfigError, match="'noon'"):
        follow(MemoryStore(), "s", until="noon")


# viewers of a run


async def test_several_viewers_see_what_is_stored_each_from_its_place(runtime):
    async with Agent(
        ScriptedModel(calls(*text("I ", "look: "), call("stock", product="mug")), answer(*WIDE)), tools=[stock]
    ).session("s", runtime=runtime) as session:
        await session.ask("How many?")
        views = [[], [], []]
        async with anyio.create_task_group() as tasks:
            for number, view in enumerate(views):
                tasks.start_soon(collect, session.follow(after=number, until="rest"), view)
    rows = await check_rows(runtime.store)
    assert [fold(view) for view in views] == [rows, rows[1:], rows[2:]]


async def test_viewers_see_an_answer_while_it_is_given(runtime):
    """The model waits for its viewers after each word, so they saw it before the next one."""
    arrived = [anyio.Event() for _ in WIDE]
    viewers = []

    class Model:
        name = "waits"

        async def stream(self, context, **options):
            async for _ in context:
                pass
            *opened, closing, stop = answer(*WIDE)
            for message, event in zip(opened, arrived, strict=True):
                yield message
                await event.wait()
            yield closing
            yield stop

    async def view():
        length, shown = 0, []
        viewers.append(shown)
        async for message in runtime.follow("s"):
            shown.append(message)
            if message.role == "assistant":
                length += len(message.content)
                if length and all(sum(len(m.content) for m in v if m.role == "assistant") >= length for v in viewers):
                    arrived[length - 1].set()
            if message.is_final:
                return

    async with Agent(Model()).session("s", runtime=runtime) as session, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(view)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(30):
            await session.ask("Say it.")
    rows = await check_rows(runtime.store)
    assert [fold(view) for view in viewers] == [rows] * 3


async def test_a_viewer_that_does_not_read_holds_nobody_up_and_loses_nothing(runtime):
    async with Agent(ScriptedModel(answer(*map(str, range(500))))).session("s", runtime=runtime) as session:
        slow = session.follow(until="rest")
        reply = session.ask("Count.")
        async for message in reply:
            if message.content == "1":
                first = await anext(slow)
        assert fold([first, *await collect(slow)]) == await check_rows(runtime.store)


async def test_a_superseded_answer_says_so(runtime):
    failed = [
        *text("wro", "ng")[:2],
        Message.stop("error", error={"kind": "overloaded", "message": "", "retryable": True}),
    ]
    model = FallbackModel([ScriptedModel(failed), ScriptedModel(answer("right"))])
    async with Agent(model).session("s", runtime=runtime) as session:
        await session.ask("What?")
        shown = fold(await collect(session.follow(until="rest")))
    told = [(m.content, (m.query or {}).get("cut"), m.attempt) for m in shown if m.type == "text"][1:]
    assert told == [("wrong", "superseded", 1), ("right", None, 2)]


async def test_a_run_that_is_cut_says_so_to_its_viewers(runtime):
    async with Agent(ScriptedModel(text("half")[:1])).session("s", runtime=runtime) as session:
        shown = []
        async with anyio.create_task_group() as tasks:
            followed = session.follow()
            async with session.ask("Say it.") as reply:
                await anext(reply)
                await anext(reply)
                while not shown or shown[-1].content != "half":
                    shown.append(await anext(followed))
            tasks.start_soon(collect, session.follow(after=followed.cursor, until="rest"), shown)
    closing, stop = shown[-2:]
    assert (closing.content, closing.more, closing.query) == ("", False, {"cut": "aborted"})
    assert stop.query["reason"] == "aborted"


async def test_following_ends_with_the_runtime_and_not_with_the_session(either_store):
    ended = []

    async def view(name, followed):
        await collect(followed)
        ended.append(name)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks, Runtime(store=either_store) as runtime:
            async with Agent("mock").session("s", runtime=runtime) as session:
                tasks.start_soon(view, "session", session.follow())
                tasks.start_soon(view, "runtime", runtime.follow("nobody"))
                await anyio.wait_all_tasks_blocked()
            await anyio.wait_all_tasks_blocked()
            assert ended == []
    assert sorted(ended) == ["runtime", "session"]


async def test_what_is_closed_while_it_looks_shows_nothing_more(runtime, monkeypatch):
    await runtime.store.write("s", [Message.user("a")], fence=await runtime.store.acquire("s"))
    followed, look = runtime.follow("s"), runtime.store.look

    async def look_and_close(*args, **options):
        followed.close()
        return await look(*args, **options)

    monkeypatch.setattr(runtime.store, "look", look_and_close)
    assert await collect(followed) == []


async def test_two_tasks_do_not_share_one(runtime):
    followed = runtime.follow("s")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collect, followed)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await anext(followed)
        followed.close()


async def test_a_place_is_checked_without_waiting(runtime):
    await runtime.follow("s").check()
    with pytest.raises(CursorGone):
        await runtime.follow("s", after="1:2").check()
    await runtime.store.write("s", [Message.user("a")], fence=await runtime.store.acquire("s"))
    with pytest.raises(CursorError):
        await runtime.follow("s", after=2).check()
    async with runtime.follow("s", live=False) as followed:
        await followed.check()
        await followed.check()
        assert fold([await anext(followed)]) == await stored(runtime.store)
        await followed.check()
        assert await collect(followed) == []


# until rest


async def test_a_session_where_nothing_goes_on_ends_at_once(runtime):
    assert await collect(runtime.follow("s", until="rest")) == []


async def test_a_prompt_that_waits_is_something_going_on(runtime):
    shown = []
    await runtime.store.enqueue("s", Message.user("Hello?"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collect, runtime.follow("s", until="rest"), shown)
        await anyio.wait_all_tasks_blocked()
        async with Agent(ScriptedModel(answer("Hi."))).session("s", runtime=runtime) as session:
            await session.resume()
    assert [(m.role, m.content) for m in fold(shown)] == [("user", "Hello?"), ("assistant", "Hi."), ("assistant", "")]


async def test_a_pause_is_rest_until_something_is_decided(runtime):
    @tool(requires_approval=True)
    def refund() -> str:
        """Give money back."""
        return "done"

    model = ScriptedModel(calls(call("refund")), answer("Done."))
    async with Agent(model, tools=[refund]).session("s", runtime=runtime) as session:
        await session.ask("Refund it.")
        await session.follow_up("And then?")
        shown = await collect(followed := session.follow(until="rest"))
        assert shown[-1].query["reason"] == "paused"
        [approval] = await session.pending()
        await session.approve(approval)
        rest = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collect, session.follow(after=followed.cursor, until="rest"), rest)
            await anyio.wait_all_tasks_blocked()
            await session.resume()
    assert fold([*shown, *rest]) == await check_rows(runtime.store)
    assert rest[-1].query["reason"] == "stop"


# slow receivers


async def test_a_receiver_that_takes_too_long_is_cut_off_and_may_go_on(runtime):
    async with Agent(ScriptedModel(answer("Hello."))).session("s", runtime=runtime) as session:
        await session.ask("Hi.")
    taken = []

    async def send(message):
        if message.type == "stop" and len(taken) < 3:
            await anyio.sleep_forever()
        taken.append(message)

    with pytest.raises(SlowConsumer, match=r"within 0\.01 s") as caught:
        await runtime.follow("s").deliver(send, patience=0.01)
    assert len(fold(taken)) == 2
    taken += [None] * 3
    await runtime.follow("s", after=caught.value.cursor, until="rest").deliver(send)
    assert fold(m for m in taken if m) == await check_rows(runtime.store)


async def test_what_a_receiver_raises_is_its_own(runtime):
    await runtime.store.write("s", [Message.user("a")], fence=await runtime.store.acquire("s"))

    async def send(message):
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await runtime.follow("s").deliver(send)


@pytest.mark.parametrize("patience", [0, -1, float("inf"), float("nan"), "1"])
async def test_patience_is_a_time(patience):
    with pytest.raises(ConfigError, match="patience"):
        await follow(MemoryStore(), "s").deliver(print, patience=patience)


# nothing is left


@pytest.mark.parametrize("leave", ["closed", "dropped", "cancelled"])
async def test_who_leaves_leaves_nothing_behind(either_store, leave):
    async with either_store as store:
        wakeups = store._ledgers.wakeups if isinstance(store, MemoryStore) else store._wakeups
        followed = follow(store, "s")
        await store.write("s", [Message.user("a")], fence=await store.acquire("s"))
        await anext(followed)
        assert len(wakeups) == 1
        if leave == "closed":
            followed.close()
        elif leave == "dropped":
            del followed
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(collect, followed)
                del followed
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
        gc.collect()
        assert len(wakeups) == 0


# any split, any interleaving

PARTS = st.text(st.sampled_from("aü水🐟"), max_size=5)
STEPS = st.lists(st.tuples(st.sampled_from(["open", "grow", "close", "look", "part", "deleted"]), PARTS), max_size=30)


@given(STEPS)
def test_any_interleaving_of_writing_and_reconnecting_gives_each_byte_once(steps):
    async def main():
        store = MemoryStore()
        fence = await store.acquire("s")
        opened, shown, place = {}, [], "0"
        for step, content in steps:
            if step == "open":
                message = Message(content=content, more=True)
                opened[message.id] = message
                await store.write("s", [message], fence=fence)
            elif step in ("grow", "close") and opened:
                message = next(iter(opened.values()))
                await store.write("s", [replace(message, content=content, more=step == "grow")], fence=fence)
                if step == "close":
                    del opened[message.id]
            elif step in ("look", "part"):
                viewer = follow(store, "s", after=place, live=False)
                async for message in viewer:
                    shown.append(message)
                    place = str(viewer.cursor)
                    if step == "part":
                        break
        for message in opened.values():
            await store.write("s", [replace(message, content="", more=False)], fence=fence)
        shown += [message for message, _ in await seen(store, after=place)]
        assert fold(shown) == await stored(store)
        assert len({m.id for m in shown if not m.more}) == len([m for m in shown if not m.more])

    anyio.run(main)


# other processes


@asynccontextmanager
async def dictation(path):
    """A process that answers with what it is told."""
    child = subprocess.Popen([sys.executable, "-m", "tests.dictated", str(path)], stdin=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        await run_sync(child.communicate)


async def tell(child, *words):
    child.stdin.write("".join(f"{word}\n" for word in words))
    child.stdin.flush()


@ASYNCIO
@pytest.mark.parametrize("read_only", [False, True])
async def test_another_process_is_followed_word_by_word(tmp_path, read_only):
    async with SqliteStore(tmp_path / "s.db"):
        pass
    async with SqliteStore(tmp_path / "s.db", read_only=read_only, poll=0.01) as store:
        shown, followed = [], follow(store, "s", until=None)
        async with dictation(tmp_path / "s.db") as child:
            with anyio.fail_after(50):
                for word in ("grün", "水", "x" * 100_000):
                    await tell(child, word)
                    read = ""
                    while read != word:
                        shown.append(await anext(followed))
                        read += shown[-1].content if shown[-1].role == "assistant" else ""
                    followed = follow(store, "s", after=str(followed.cursor))  # reconnect
                child.stdin.close()
                while not shown[-1].is_final:
                    shown.append(await anext(followed))
        assert fold(shown) == await stored(store)


@ASYNCIO
async def test_after_a_kill_the_viewer_is_told_when_the_session_goes_on(tmp_path):
    path = tmp_path / "s.db"
    async with SqliteStore(path, poll=0.01) as store:
        shown, followed = [], follow(store, "s")
        with anyio.fail_after(50):
            async with dictation(path) as child:
                await tell(child, "half")
                while not shown or shown[-1].content != "half":
                    shown.append(await anext(followed))
            async with Agent(ScriptedModel(answer("Again.")), store=SqliteStore(path)).session("s") as session:
                await session.ask("Go on.")
            while not shown[-1].is_final or shown[-1].query["reason"] != "stop":
                shown.append(await anext(followed))
        assert fold(shown) == await check_rows(store)
    assert fold(shown)[1].query == {"cut": "crashed"}
