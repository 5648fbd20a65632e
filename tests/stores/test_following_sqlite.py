"""What following costs an SQLite file, and that neither the hints nor the poll are needed for the other to do."""

from contextlib import aclosing
from dataclasses import replace

import anyio
import pytest

from streamagent.errors import ConfigError, CursorError, CursorGone, StoreBusy, StoreError
from streamagent.follow import Follow
from streamagent.message import Message
from streamagent.stores import _looks
from streamagent.stores.sqlite import SqliteStore
from streamagent.testing.contract.following import seen
from streamagent.testing.contract.rows import LONG

pytestmark = pytest.mark.anyio
NEVER = 1_000_000.0  # seconds


@pytest.fixture(params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "s.db")


class Counted(SqliteStore):
    """Counts its polls and its looks, and lets a test wait for the next poll."""

    polls = 0

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.looks = []
        self.polled = anyio.Event()

    async def look(self, session, **place):
        self.looks.append(session)
        return await super().look(session, **place)

    async def _ask_versions(self, sessions):
        found = await super()._ask_versions(sessions)
        self.polls += 1
        self.polled.set()
        self.polled = anyio.Event()
        return found

    async def next_polls(self, count):
        for _ in range(count):
            await self.polled.wait()


async def grow(store, followed, count=3):
    """Write with a store, and wait for each message where it is followed."""
    fence = await store.acquire("s")
    for number in range(count):
        await store.write("s", [Message(content=f"{number}")], fence=fence)
        assert (await anext(followed)).content == f"{number}"


async def test_hints_do_without_the_poll(path):
    async with SqliteStore(path, poll=NEVER) as store, Follow(store, "s") as followed:
        with anyio.fail_after(30):
            await grow(store, followed)


async def test_the_poll_does_without_hints(path, monkeypatch):
    async with SqliteStore(path, poll=0.01) as store, Follow(store, "s") as followed:
        monkeypatch.setattr(store._wakeups, "notify", lambda session: None)
        store._writer._committed = store._wakeups.notify
        with anyio.fail_after(30):
            await grow(store, followed)


async def test_the_poll_sees_what_another_store_commits(path):
    async with SqliteStore(path) as writer, SqliteStore(path, read_only=True, poll=0.01) as reader:
        with anyio.fail_after(30):
            await grow(writer, Follow(reader, "s"))


async def test_a_thousand_who_wait_ask_one_question(path):
    async with Counted(path, poll=0.01) as store, anyio.create_task_group() as tasks:
        viewers = [Follow(store, f"s{number % 500}") for number in range(1000)]
        for viewer in viewers:
            tasks.start_soon(anext, viewer, None)
        with anyio.fail_after(30):
            while len(store.looks) < 1000:
                await store.next_polls(1)
            await store.next_polls(5)  # the first one compares with nothing
            looks, polls = len(store.looks), store.polls
            await store.next_polls(5)
        assert store.polls >= polls + 5
        assert len(store.looks) == looks
        for viewer in viewers:
            viewer.close()


async def test_who_follows_one_session_is_not_woken_for_another(path):
    async with SqliteStore(path) as writer, Counted(path, poll=0.01) as reader, anyio.create_task_group() as tasks:
        viewer = Follow(reader, "quiet")
        tasks.start_soon(anext, viewer, None)
        fence = await writer.acquire("loud")
        with anyio.fail_after(30):
            await reader.next_polls(3)
            looks = len(reader.looks)
            for number in range(10):
                await writer.write("loud", [Message(content=f"{number}")], fence=fence)
                await reader.next_polls(2)
        assert len(reader.looks) - looks <= 1  # its own version was seen for the first time
        viewer.close()


async def test_what_waits_for_its_lag_is_neither_shown_nor_hurried(path):
    async with SqliteStore(path) as store:
        fence = await store.acquire("s")
        store.write_soon("s", Message(content="later"), fence=fence, lag=LONG)
        assert await seen(store) == []
        assert "s" in store._writer._lagged
        await store.flush("s")
        assert [message.content for message, _ in await seen(store)] == ["later"]


async def test_the_place_in_a_message_is_looked_for_once(path, monkeypatch):
    searched = []
    search = _looks._piece_at

    def counted(db, key, offset):
        searched.append(offset)
        return search(db, key, offset)

    monkeypatch.setattr(_looks, "_piece_at", counted)
    async with SqliteStore(path) as store:
        fence = await store.acquire("s")
        opened = Message(content="begun", more=True)
        await store.write("s", [opened], fence=fence)
        followed = Follow(store, "s", after="0:2")
        for number in range(20):
            await anext(followed)
            await store.write("s", [replace(opened, content=f"{number}" * 50_000)], fence=fence)
        followed.close()
    assert searched == [2]


async def test_an_error_of_the_store_is_raised_once_and_nothing_is_lost(path, monkeypatch):
    async with SqliteStore(path) as store:
        await store.write("s", [Message(content="a"), Message(content="b")], fence=await store.acquire("s"))
        followed = Follow(store, "s")
        look = store.look

        async def fail(*args, **options):
            monkeypatch.setattr(store, "look", look)
            raise StoreBusy("locked")

        monkeypatch.setattr(store, "look", fail)
        with pytest.raises(StoreBusy):
            await anext(followed)
        assert [(await anext(followed)).content for _ in range(2)] == ["a", "b"]
        followed.close()


async def test_viewers_learn_of_an_error_that_the_poll_meets(path, monkeypatch):
    async with SqliteStore(path, poll=0.01) as store:
        followed = Follow(store, "s", after=None)

        async def fail(*args, **options):
            raise StoreError("the disk failed")

        async def view():
            with pytest.raises(StoreError, match="the disk failed"):
                await anext(followed)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(view)
            with anyio.fail_after(30):
                while not followed._caught_up:
                    await anyio.sleep(0.001)
            monkeypatch.setattr(store, "_call", fail)
        followed.close()


async def test_a_store_that_is_closed_tells_who_follows(path):
    async with anyio.create_task_group() as tasks, SqliteStore(path, poll=NEVER) as store:
        followed = Follow(store, "s")

        async def view():
            with pytest.raises(StoreError, match="is not open"):
                await anext(followed)

        tasks.start_soon(view)
        while not followed._caught_up:
            await anyio.sleep(0.001)


async def test_an_error_in_the_block_is_raised_as_it_is(path):
    with pytest.raises(KeyError, match="mine"):
        async with SqliteStore(path) as store, aclosing(store.read("s")):
            raise KeyError("mine")


@pytest.mark.parametrize("poll", [0, -1, float("inf"), float("nan")])
def test_the_poll_is_a_time(path, poll):
    with pytest.raises(ConfigError, match="poll"):
        SqliteStore(path, poll=poll)


async def test_a_tenant_follows_its_own_sessions_only(path):
    never = 600.0  # seconds: what is asked below is asked by nobody else
    async with SqliteStore(path, tenant="one", poll=never) as one, SqliteStore(path, tenant="two", poll=never) as two:
        message = Message(content="", more=True)  # the same id in both
        for store, content in ((one, "a"), (two, "öö")):
            fence = await store.acquire("s")
            await store.write("s", [replace(message, content=content * 50_000)], fence=fence)
        for place in ("0:2", "0:49998"):
            assert {*(await seen(one, after=place))[0][0].content} == {"a"}
            assert {*(await seen(two, after=place))[0][0].content} == {"ö"}
        assert await seen(two, after="0:200000") == []
        assert sum(len(message.content) for message, _ in await seen(two, after="0:65600")) == (200_000 - 65_600) // 2
        for store in (one, two):
            fence = await store.acquire("s")
            await store.write("s", [replace(message, more=False), Message(content="b")], fence=fence)
            assert await seen(store, after=(await seen(store))[-1][1]) == []
        await one.write("s", [Message(content="c")], fence=await one.acquire("s"))
        with pytest.raises(CursorError):
            await seen(two, after=3)
        assert [store["s"][0] for store in (await one._ask_versions(["s"]), await two._ask_versions(["s"]))] == [3, 2]
        assert await two.delete("s")
        assert (await seen(two), (await seen(one, after=2))[0][0].content) == ([], "c")
        with pytest.raises(CursorGone):
            await seen(two, after=1)


async def test_what_became_of_sessions_is_asked_only_after_somebody_wrote(path):
    async with SqliteStore(path) as store:
        await store.acquire("s")
        assert [await store._ask_versions(["s"]) for _ in range(3)] == [{"s": [0, 1, None]}, None, None]
        await store.acquire("other")
        assert await store._ask_versions(["s"]) == {"s": [0, 1, None]}
