"""SqliteStore passes the contract, on a file and in memory, and is honest about lag, cancellation and closing."""

import json
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest

from streamagent.errors import ConfigError, LeaseLost, MessageError, StoreError, StoreReadOnly, UnsupportedBackendError
from streamagent.message import Message
from streamagent.records import Owner
from streamagent.stores.sqlite import SqliteStore
from streamagent.testing.contract import StoreContract
from streamagent.testing.contract.rows import KIB64, LONG, call_and_result, contents, rows, text

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a b%20?#.db")


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()


def ask(path, sql, *args):
    """Look into the file, past the store."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql, args).fetchall()


class TestFile(StoreContract):
    async def make_store(self):
        return SqliteStore(self.folder / "a b%20?#.db", synchronous="normal")


class TestInMemory(StoreContract):
    async def make_store(self):
        return SqliteStore(":memory:")


class TestTables:
    async def test_a_record_that_an_earlier_version_left_of_a_call_with_a_result_is_not_told(self, path):
        call, result = call_and_result()
        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
            await store.write("s", [call], fence=fence)
            await store.start_call("s", call.id, fence=fence)
            await store.write("s", [result], fence=fence)
            with closing(sqlite3.connect(path)) as db, db:
                assert db.execute("UPDATE calls SET state = 'finished', outcome = '{}'").rowcount == 1
            assert await store.calls("s") == []

    async def test_a_finished_message_of_64_kib_is_one_row_and_a_larger_one_is_pieces(self, path):
        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
            await store.write("s", [text("x" * KIB64), text("é" * (KIB64 // 2) + "y")], fence=fence)
        assert ask(path, "SELECT length(content), size, state FROM messages ORDER BY sequence") == [
            (KIB64, KIB64, "closed"),
            (0, KIB64 + 1, "closed"),
        ]
        assert ask(path, "SELECT max(length(CAST(content AS BLOB))) <= 65536, min(piece) FROM fragments") == [(1, 0)]

    async def test_pieces_of_a_small_message_are_gathered_when_it_is_closed(self, path):
        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
            message = text("a", more=True)
            await store.write("s", [message], fence=fence)
            await store.write("s", [replace(message, content="b")], fence=fence)
            assert ask(path, "SELECT piece, content FROM fragments") == [(0, "a"), (1, "b")]
            await store.write("s", [replace(message, content="c", more=False)], fence=fence)
        assert ask(path, "SELECT content FROM messages") == [("abc",)]
        assert ask(path, "SELECT count(*) FROM fragments") == [(0,)]

    async def test_the_view_of_sessions_tells_what_the_store_lists(self, path):
        async with SqliteStore(path) as store:
            for session in ("a", "b"):
                fence = await store.acquire(session)
                await store.write(session, [text("x"), text("y", more=True)], fence=fence)
            await store.enqueue("b", Message.user("hi"))
            listed = [info async for info in store.sessions()]
        seen = ask(path, "SELECT id, created_at, modified_at, messages FROM sessions ORDER BY modified_at DESC")
        assert [(info.id, info.messages) for info in listed] == [(row[0], row[3]) for row in seen]
        for info, row in zip(listed, seen, strict=True):
            assert [f"{t:%Y-%m-%dT%H:%M:%S.%f}Z" for t in (info.created_at, info.modified_at)] == list(row[1:3])

    async def test_queries_are_plain_json(self, path):
        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
            await store.write("s", call_and_result(), fence=fence)
        [(first,), (second,)] = ask(path, "SELECT query FROM messages ORDER BY sequence")
        assert (json.loads(first)["tool"], json.loads(second)["tool"]) == ("stock", "stock")
        assert ask(path, "SELECT query ->> 'tool' FROM messages WHERE type = 'tool_call'") == [("stock",)]

    async def test_what_is_unfinished_is_found_by_its_index_whatever_the_history(self, path):
        from streamagent.stores import _queries, _standing, _statements

        async with SqliteStore(path):
            pass
        for query, args in (
            (_standing.LEFT, ["default", "s"]),
            (_standing.INBOX, ["default", "s"]),
            (_standing.BOTH, ["default", "s"]),
            (_queries._WAITING, ['["s"]', "default", "cancel"]),
            (_statements.WAITING, ["default", "s", 1]),
        ):
            [plan, *shared] = [
                row[3] for row in ask(path, f"EXPLAIN QUERY PLAN {query}", *args) if "messages" in row[3]
            ]
            assert "messages_unfinished (tenant=? AND session=? AND state=?)" in plan
            assert all("origin USING INDEX sqlite_autoindex_messages_1 (id=? AND" in line for line in shared)

    async def test_what_is_unattended_is_found_by_two_small_indexes_whatever_other_sessions_there_are(self, path):
        from streamagent.stores import _queries

        async with SqliteStore(path):
            pass
        plan = [row[3] for row in ask(path, f"EXPLAIN QUERY PLAN {_queries._UNATTENDED}", "default", 1)]
        assert "SEARCH leases USING INDEX leases_owner (tenant=? AND owner>?)" in plan
        assert "SEARCH messages USING INDEX messages_inbox (tenant=?)" in plan
        assert not [line for line in plan if "SCAN" in line and "waits" not in line and "found" not in line]

    async def test_another_tenant_sees_none_of_it(self, path):
        async with SqliteStore(path, tenant="one") as one, SqliteStore(path, tenant="two") as two:
            fence = await one.acquire("s")
            call, _ = call_and_result()
            await one.write("s", [text("x" * 2 * KIB64), call, text("open", more=True)], fence=fence)
            await one.enqueue("s", Message.user("hi"), client_key="k")
            left = await two.unfinished("s")
            assert (list(left.open), list(left.calls), left.last) == ([], [], None)
            assert await rows(two) == []
            assert await two.inbox("s") == []
            assert (await one.waiting(["s"], "text"), await two.waiting(["s"], "text")) == ({"s"}, set())
            assert await two.tally("s") == {}
            assert [info async for info in two.sessions()] == []
            assert await two.delete("s") is False
            with pytest.raises(LeaseLost):
                await two.write("s", [text("late")], fence=fence)
            other = await two.acquire("s")
            assert await two.write("s", [call], fence=other) == [1]
            await two.enqueue("s", Message.user("bye"), client_key="k")
            assert await one.write("s", [text("still mine")], fence=fence) == [4]

    async def test_what_was_stored_is_there_after_reopening(self, path):
        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
            await store.write("s", [text("a"), text("b" * 3 * KIB64)], fence=fence)
            before = await rows(store)
        async with SqliteStore(path) as store:
            assert await rows(store) == before
            assert await store.acquire("s") > fence

    async def test_the_fence_holds_even_without_the_lock(self, path):
        from streamagent.stores._row import Row
        from streamagent.stores._tables import TableLedger

        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            ledger = TableLedger(db, "default", "s", now="2025-01-01T00:00:00.000000Z")
            ledger.write([Row.of(text("late"))], fence=fence)
            db.execute("UPDATE leases SET fence = fence + 1")
            with pytest.raises(LeaseLost):
                ledger.save()
            assert db.execute("SELECT count(*) FROM messages").fetchone() == (0,)


class TestLag:
    async def test_a_fragment_waits_in_memory_for_its_lag(self, path):
        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
            message = text("ab", more=True)
            assert store.write_soon("s", message, fence=fence, lag=LONG) == 2
            assert store.write_soon("s", replace(message, content="é"), fence=fence, lag=LONG) == 4
            await store.enqueue("other", Message.user("commits something else"))
            assert ask(path, "SELECT count(*) FROM messages WHERE session = 's'") == [(0,)]
        assert ask(path, "SELECT content FROM fragments") == [("abé",)]

    async def test_a_fragment_is_committed_when_its_lag_is_over(self, path):
        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
            store.write_soon("s", text("a"), fence=fence, lag=0.001)
            with anyio.fail_after(5):
                while not ask(path, "SELECT * FROM messages"):
                    await anyio.lowlevel.checkpoint()

    async def test_flush_waits_for_fragments_that_are_being_committed(self, path):
        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
            store.write_soon("s", text("a"), fence=fence, lag=0)
            with anyio.fail_after(5):
                while not store._writer._batch:
                    await anyio.lowlevel.checkpoint()
            await store.flush("s")
            assert ask(path, "SELECT content FROM messages") == [("a",)]

    async def test_readers_read_on_while_fragments_cannot_be_written_and_are_not_told(self, path):
        async with SqliteStore(path) as store, SqliteStore(path) as other:
            fence = await store.acquire("s")
            await store.write("s", [text("a")], fence=fence)
            store.write_soon("s", text("late"), fence=fence, lag=LONG)
            await other.acquire("s")
            assert await contents(store) == ["a"]
            assert await store.tally("s") == {("assistant", "text"): 1}
            with pytest.raises(LeaseLost):
                await store.flush("s")

    async def test_a_shorter_lag_hurries_what_waits(self, path):
        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
            store.write_soon("s", text("a"), fence=fence, lag=LONG)
            store.write_soon("s", text("b"), fence=fence, lag=0)
            store.write_soon("t", text("c"), fence=await store.acquire("t"), lag=LONG)
            with anyio.fail_after(5):
                while len(ask(path, "SELECT * FROM messages")) < 2:
                    await anyio.lowlevel.checkpoint()
            assert ask(path, "SELECT DISTINCT session FROM messages") == [("s",)]

    async def test_a_refused_fragment_is_reported_once_by_the_next_call(self, path):
        async with SqliteStore(path) as store, SqliteStore(path) as other:
            for report in ("write_soon", "write", "flush"):
                fence = await store.acquire("s")
                await other.acquire("s")
                store.write_soon("s", text("lost"), fence=fence, lag=LONG)
                with pytest.raises(LeaseLost):
                    await store.flush("s")
                store.write_soon("s", text("lost"), fence=fence, lag=0)
                await store.enqueue("t", Message.user("committed in the same batch or a later one"))
                with pytest.raises(LeaseLost):
                    if report == "write_soon":
                        store.write_soon("s", text("more"), fence=fence, lag=LONG)
                        await store.flush("s")
                    elif report == "write":
                        await store.write("s", [text("more")], fence=fence)
                    else:
                        await store.flush("s")
            assert await rows(other) == []

    async def test_fragments_for_a_message_that_was_closed_elsewhere_are_reported(self, path):
        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
            message = text("a")
            await store.write("s", [message], fence=fence)
            store.write_soon("s", message, fence=fence, lag=LONG)
            with pytest.raises(MessageError):
                await store.flush("s")
            store.write_soon("s", text("b"), fence=fence, lag=LONG)
            await store.flush("s")
            assert await contents(store) == ["a", "b"]

    async def test_a_new_writer_is_not_told_what_the_old_one_was_refused(self, path):
        async with SqliteStore(path) as store:
            old = await store.acquire("s")
            message = text("a")
            await store.write("s", [message], fence=old)
            store.write_soon("s", message, fence=old, lag=LONG)
            fence = await store.acquire("s")
            store.write_soon("s", text("b"), fence=fence, lag=LONG)
            await store.flush("s")
            assert await contents(store) == ["a", "b"]

    async def test_fragments_of_two_writers_are_kept_apart(self, path):
        async with SqliteStore(path) as store:
            old = await store.acquire("s")
            fence = await store.acquire("s")
            store.write_soon("s", text("late"), fence=old, lag=LONG)
            store.write_soon("s", text("new"), fence=fence, lag=LONG)
            with pytest.raises(LeaseLost):
                await store.flush("s")
            assert await contents(store) == ["new"]

    async def test_a_refusal_that_nobody_asked_for_is_raised_at_the_end(self, path):
        with pytest.raises(LeaseLost):
            async with SqliteStore(path) as store:
                fence = await store.acquire("s")
                await store.acquire("s")
                store.write_soon("s", text("late"), fence=fence, lag=LONG)


class TestSynchronous:
    @pytest.fixture
    def pragmas(self, monkeypatch):
        """What the writer sets between its transactions: 1 is normal, 2 full."""
        from streamagent.stores._sqlite_writer import SqliteWriter

        seen = []
        original = SqliteWriter._set_synchronous

        def spy(self, db, batch):
            original(self, db, batch)
            seen.append(db.execute("PRAGMA synchronous").fetchone()[0])

        monkeypatch.setattr(SqliteWriter, "_set_synchronous", spy)
        return seen

    async def lagged_then_durable(self, path, synchronous):
        async with SqliteStore(path, synchronous=synchronous) as store:
            fence = await store.acquire("s")
            store.write_soon("s", text("a"), fence=fence, lag=0)
            with anyio.fail_after(5):
                while not ask(path, "SELECT * FROM messages"):
                    await anyio.lowlevel.checkpoint()
            await store.write("s", [text("b")], fence=fence)

    async def test_full_syncs_what_somebody_waits_for_and_only_that(self, path, pragmas):
        await self.lagged_then_durable(path, "full")
        assert pragmas == [2, 1, 2]

    async def test_who_holds_a_session_is_over_with_the_machine_and_needs_no_sync(self, path, pragmas):
        async with SqliteStore(path) as store:
            fence = await store.acquire("s", owner=Owner(id="a", ttl=1.0))
            await store.heartbeat(Owner(id="a", ttl=1.0))
            await store.release("s", fence=fence)
        assert pragmas == [2, 1, 1]

    async def test_what_was_admitted_waits_again_when_the_machine_stops_and_needs_no_sync(self, path, pragmas):
        async with SqliteStore(path) as store:
            sent = await store.enqueue("s", Message(content="hello"))
            fence = await store.acquire("s")
            assert [row.id for row in await store.admit("s", fence=fence)] == [sent.id]
            await store.write("s", [text("and now")], fence=fence)
        assert pragmas == [2, 2, 1, 2]

    async def test_normal_never_syncs(self, path, pragmas):
        await self.lagged_then_durable(path, "normal")
        assert pragmas == [1, 1, 1]


class TestCancel:
    async def test_a_write_whose_caller_was_cancelled_still_happens(self, path):
        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
            with anyio.CancelScope() as scope:
                scope.cancel()
                await store.write("s", [text("a")], fence=fence)
            assert scope.cancelled_caught
            assert await contents(store) == ["a"]
            assert await store.write("s", [text("b")], fence=fence) == [2]

    async def test_leaving_commits_what_waits_also_when_cancelled(self, path):
        with anyio.CancelScope() as scope:
            async with SqliteStore(path) as store:
                fence = await store.acquire("s")
                store.write_soon("s", text("shown"), fence=fence, lag=LONG)
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert ask(path, "SELECT content FROM messages") == [("shown",)]

    async def test_leaving_commits_what_waits_also_when_the_block_raises_and_raises_that(self, path):
        with pytest.raises(ZeroDivisionError) as caught:
            async with SqliteStore(path) as store:
                fence = await store.acquire("s")
                store.write_soon("s", text("shown"), fence=fence, lag=LONG)
                raise ZeroDivisionError
        assert caught.type is ZeroDivisionError
        assert ask(path, "SELECT content FROM messages") == [("shown",)]

    async def test_a_cancelled_reader_leaves_the_store_usable(self, path):
        async with SqliteStore(path) as store:
            await store.enqueue("s", Message.user("hi"))
            with anyio.CancelScope() as scope:
                scope.cancel()
                await store.inbox("s")
            assert len(await store.inbox("s")) == 1

    async def test_a_bug_in_an_operation_reaches_its_caller_and_the_writer_lives_on(self, path):
        async with SqliteStore(path) as store:
            with pytest.raises(StoreError) as caught:
                await store._writing().submit("s", lambda ledger: 1 / 0)
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
            assert await store.acquire("s") == 1


class TestOpening:
    async def test_an_unknown_synchronous_is_refused(self, path):
        with pytest.raises(ConfigError, match="'off'"):
            SqliteStore(path, synchronous="off")

    async def test_a_store_that_is_not_open_says_so(self, path):
        store = SqliteStore(path)
        with pytest.raises(StoreError, match="async with"):
            await store.acquire("s")
        with pytest.raises(StoreError, match="async with"):
            await store.inbox("s")

    async def test_a_store_that_was_closed_says_so(self, path):
        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
        for refused in (store.acquire("s"), store.inbox("s"), anext(store.sessions())):
            with pytest.raises(StoreError, match="async with"):
                await refused
        with pytest.raises(StoreError, match="async with"):
            store.write_soon("s", text("late"), fence=fence, lag=LONG)

    async def test_a_store_may_be_opened_again(self, path):
        store = SqliteStore(path)
        for n in range(2):
            async with store:
                assert await store.acquire("s") == n + 1

    async def test_a_store_that_is_open_refuses_to_be_opened_and_stays_open(self, path):
        async with SqliteStore(path) as store:
            with pytest.raises(ConfigError, match=r"open already.*Runtime"):
                async with store:
                    pass
            assert await store.acquire("s") == 1

    async def test_a_store_that_is_being_opened_refuses_a_second_task(self, path):
        store, refused = SqliteStore(path), []

        async def enter():
            try:
                async with store:
                    await anyio.wait_all_tasks_blocked()
            except ConfigError as error:
                refused.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(enter)
            tasks.start_soon(enter)
        assert len(refused) == 1

    async def test_a_store_that_could_not_be_opened_can_be_later(self, tmp_path):
        store = SqliteStore(tmp_path / "folder" / "shop.db")
        with pytest.raises(StoreError, match="folder"):
            await store.__aenter__()
        (tmp_path / "folder").mkdir()
        async with store:
            assert await store.acquire("s") == 1

    async def test_a_store_can_be_reopened_beside_itself_with_its_options(self, path):
        async with SqliteStore(path, tenant="t", busy_timeout=1, read_only=False, synchronous="normal") as store:
            async with store.reopened() as other:
                fence = await other.acquire("s")
                await other.write("s", [text("a")], fence=fence)
            assert await contents(store) == ["a"]
        assert other is not store
        assert vars(other).keys() == vars(store).keys()
        for name in ("path", "tenant", "read_only", "_synchronous", "_busy_timeout"):
            assert getattr(other, name) == getattr(store, name)

    async def test_a_database_in_memory_cannot_be_opened_twice(self):
        async with SqliteStore(":memory:") as store:
            assert store.reopened() is store
            with pytest.raises(ConfigError, match="open already"):
                await store.reopened().__aenter__()

    async def test_a_viewer_reads_and_refuses_every_write(self, path):
        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
            await store.write("s", [text("a"), text("b" * 2 * KIB64)], fence=fence)
            async with SqliteStore(path, read_only=True) as viewer:
                assert await rows(viewer) == await rows(store)
                assert [info.id async for info in viewer.sessions()] == ["s"]
                for refused in (
                    viewer.acquire("s"),
                    viewer.write("s", [], fence=fence),
                    viewer.flush("s"),
                    viewer.enqueue("s", text("x")),
                    viewer.admit("s", fence=fence),
                    viewer.delete("s"),
                ):
                    with pytest.raises(StoreReadOnly, match="read_only"):
                        await refused
                with pytest.raises(StoreReadOnly):
                    viewer.write_soon("s", text("x"), fence=fence, lag=0)


class TestTrio:
    @pytest.fixture
    def anyio_backend(self):
        return "trio"

    async def test_trio_is_refused_with_a_way_out(self, path):
        with pytest.raises(UnsupportedBackendError, match="MemoryStore"):
            async with SqliteStore(path):
                pass


def test_importing_the_store_loads_neither_sqlite_nor_aiosqlite():
    import subprocess
    import sys

    code = "import sys, streamagent.stores.sqlite; print({'sqlite3', 'aiosqlite', 'asyncio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "sqlite" not in done.stdout
