"""What SqliteStore does when the file is locked, full, read-only, damaged, foreign, shared or cut off by a kill."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from streamagent.archive import export_session
from streamagent.errors import (
    LeaseLost,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreSchemaError,
)
from streamagent.message import Message
from streamagent.stores.sqlite import SqliteStore
from streamagent.testing.contract.rows import KIB64, LONG, contents, rows, text

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "shop.db")


@contextmanager
def locked(path):
    """Hold the write lock of another connection."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield db
        if db.in_transaction:
            db.execute("ROLLBACK")


async def filled(path, number=50):
    async with SqliteStore(path) as store:
        fence = await store.acquire("s")
        await store.write("s", [text(f"{n}" * 2000) for n in range(number)], fence=fence)
    return fence


def without_wal(path):
    assert not Path(f"{path}-wal").exists()
    return Path(path)


class TestBusy:
    async def test_a_locked_file_is_busy_after_the_timeout_and_nothing_was_written(self, path):
        async with SqliteStore(path, busy_timeout=0.05) as store:
            fence = await store.acquire("s")
            with locked(path):
                with pytest.raises(StoreBusy, match=r"shop\.db.*busy_timeout"):
                    await store.write("s", [text("a")], fence=fence)
                assert await store.tally("s") == {}
            assert await store.write("s", [text("b")], fence=fence) == [1]

    async def test_a_write_waits_for_the_lock_to_be_released(self, path):
        async with SqliteStore(path, busy_timeout=30) as store, anyio.create_task_group() as tasks:
            fence = await store.acquire("s")
            with locked(path) as db:
                tasks.start_soon(lambda: store.write("s", [text("a")], fence=fence))
                await anyio.wait_all_tasks_blocked()
                assert db.execute("SELECT * FROM messages").fetchall() == []
            assert await contents(store) == ["a"]  # a reader waits for what was handed over before it

    async def test_all_that_was_grouped_fails_alike_each_with_its_own_error(self, path):
        errors = []
        async with SqliteStore(path, busy_timeout=0.05) as store:

            async def send(n):
                try:
                    await store.enqueue(f"s{n}", Message.user("hi"))
                except StoreBusy as error:
                    errors.append(error)

            with locked(path):
                async with anyio.create_task_group() as tasks:
                    for n in range(5):
                        tasks.start_soon(send, n)
        assert len(errors) == len({id(error) for error in errors}) == 5

    async def test_lagged_fragments_stay_and_go_ahead_of_the_next_write(self, path):
        async with SqliteStore(path, busy_timeout=0.05) as store:
            fence = await store.acquire("s")
            message = text("a", more=True)
            store.write_soon("s", message, fence=fence, lag=LONG)
            with locked(path):
                with pytest.raises(StoreBusy):
                    await store.flush("s")
                for _ in range(2):
                    with pytest.raises(StoreBusy):
                        store.write_soon("s", replace(message, content="not taken"), fence=fence, lag=LONG)
                with pytest.raises(StoreBusy):
                    await store.write("s", [text("not taken")], fence=fence)
            await store.write("s", [replace(message, content="b", more=False)], fence=fence)
            assert store.write_soon("s", text("c"), fence=fence, lag=LONG) == 1
            assert await contents(store) == ["ab", "c"]

    async def test_a_stream_of_fragments_is_refused_soon_after_the_timeout(self, path):
        async with SqliteStore(path, busy_timeout=0.05) as store:
            fence = await store.acquire("s")
            message = text("a", more=True)
            store.write_soon("s", message, fence=fence, lag=0)
            with locked(path), anyio.fail_after(20), pytest.raises(StoreBusy):
                while True:
                    await anyio.lowlevel.checkpoint()
                    if store._writer._batch:  # each comes while an attempt is under way
                        store.write_soon("s", message, fence=fence, lag=0)

    async def test_fragments_are_refused_also_while_earlier_ones_are_tried_again(self, path):
        async with SqliteStore(path, busy_timeout=0.05) as store:
            fence = await store.acquire("s")
            message = text("a", more=True)
            store.write_soon("s", message, fence=fence, lag=LONG)
            with locked(path):
                with pytest.raises(StoreBusy):
                    await store.flush("s")
                store._writer._hand_over("s", None)
                while not store._writer._batch:
                    await anyio.lowlevel.checkpoint()
                with pytest.raises(StoreBusy):
                    store.write_soon("s", replace(message, content="not taken"), fence=fence, lag=LONG)
                with pytest.raises(StoreBusy):
                    await store.flush("s")
            await store.flush("s")
            assert store.write_soon("s", replace(message, content="b", more=False), fence=fence, lag=LONG) == 1
            assert await contents(store) == ["ab"]

    async def test_lagged_fragments_stay_until_the_end_of_the_block(self, path):
        async with SqliteStore(path, busy_timeout=0.05) as store:
            fence = await store.acquire("s")
            store.write_soon("s", text("a"), fence=fence, lag=LONG)
            with locked(path), pytest.raises(StoreBusy):
                await store.flush("s")
        assert Path(path).stat().st_size
        async with SqliteStore(path) as store:
            assert await contents(store) == ["a"]

    async def test_what_cannot_be_written_at_the_end_is_raised_there(self, path):
        with pytest.raises(StoreBusy):
            async with SqliteStore(path, busy_timeout=0.05) as store:
                fence = await store.acquire("s")
                store.write_soon("s", text("a"), fence=fence, lag=LONG)
                lock = locked(path)
                lock.__enter__()
        lock.__exit__(None, None, None)

    async def test_opening_a_new_file_that_is_locked_is_busy(self, path):
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StoreBusy, match="shop"):
                async with SqliteStore(path, busy_timeout=0.05):
                    pass

    async def test_a_lock_that_sqlite_does_not_wait_for_is_waited_for(self, path):
        from streamagent.stores._connection import patiently

        tries = []

        def transaction():
            tries.append(1)
            if len(tries) < 3:
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
                raise error
            return "done"

        assert patiently(transaction, path=path, timeout=5) == "done"
        assert len(tries) == 3


class TestFull:
    @contextmanager
    def full(self, store):
        """Let the file grow no more, as a full disk would."""

        def limit(db, pages):
            return db.execute(f"PRAGMA max_page_count = {pages}").fetchone()

        yield lambda pages: store._writer._db._execute(limit, store._writer._db._conn, pages)

    async def test_a_full_disk_stores_nothing_says_so_and_recovers_when_there_is_room(self, path):
        async with SqliteStore(path) as store:
            fence = await store.acquire("s")
            await store.write("s", [text("a")], fence=fence)
            with self.full(store) as limit:
                await limit(1)  # SQLite takes the present size when it is larger
                store.write_soon("s", text("shown " * 10_000), fence=fence, lag=LONG)
                with pytest.raises(StoreFull, match=r"shop\.db.*make room"):
                    await store.write("s", [text("b" * 3 * KIB64)], fence=fence)
                assert await store.tally("s") == {("assistant", "text"): 1}
                with pytest.raises(StoreFull):
                    store.write_soon("s", text("more"), fence=fence, lag=LONG)
                await limit(1 << 30)
            assert await store.write("s", [text("c")], fence=fence) == [3]
            assert [content[:2] for content in await contents(store)] == ["a", "sh", "c"]


class TestReadOnly:
    @pytest.fixture
    def folder(self):
        """A folder that an unprivileged user may read but not write."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            folder.chmod(0o755)
            yield folder
            folder.chmod(0o755)

    @contextmanager
    def unprivileged(self, folder):
        """Be nobody, because permissions do not bind root."""
        folder.chmod(0o555)
        mine = os.geteuid()
        if mine == 0:
            os.seteuid(65534)
        try:
            yield
        finally:
            if mine == 0:
                os.seteuid(mine)

    async def test_a_file_that_cannot_be_written_is_read_only(self, folder):
        path = folder / "shop.db"
        await filled(str(path), 1)
        path.chmod(0o444)
        with closing(sqlite3.connect(path)) as db:
            db.execute("SELECT * FROM messages").fetchall()  # leaves -wal and -shm, as a writer that was killed does
            for name in ("-wal", "-shm"):
                Path(f"{path}{name}").chmod(0o444)
            with self.unprivileged(folder), pytest.raises(StoreReadOnly, match="shop"):
                async with SqliteStore(path) as store:
                    await store.acquire("s")

    async def test_a_folder_that_cannot_be_written_is_read_only(self, folder):
        with self.unprivileged(folder), pytest.raises(StoreReadOnly, match="folder"):
            async with SqliteStore(folder / "new.db"):
                pass

    async def test_a_missing_folder_is_named(self, tmp_path):
        with pytest.raises(StoreError, match=r"nowhere.*create its folder"):
            async with SqliteStore(tmp_path / "nowhere" / "shop.db"):
                pass

    async def test_a_viewer_makes_no_file(self, path):
        with pytest.raises(StoreError, match="shop"):
            async with SqliteStore(path, read_only=True):
                pass
        assert not Path(path).exists()

    async def test_a_viewer_refuses_an_empty_file(self, path):
        Path(path).touch()
        with pytest.raises(StoreCorrupt, match="empty"):
            async with SqliteStore(path, read_only=True):
                pass


class TestDamage:
    async def test_garbage_is_no_database_and_stays_as_it_is(self, path):
        Path(path).write_bytes(b"not a database, but long enough to be one" * 100)
        with pytest.raises(StoreCorrupt, match=r"shop\.db.*no SQLite database"):
            async with SqliteStore(path):
                pass
        assert Path(path).read_bytes()[:5] == b"not a"

    async def test_a_truncated_file_is_refused(self, path):
        await filled(path)
        whole = without_wal(path).read_bytes()
        Path(path).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(StoreCorrupt, match="shop"):
            async with SqliteStore(path):
                pass
        assert Path(path).stat().st_size == len(whole) // 2

    async def test_damaged_pages_are_found_when_a_small_file_is_opened(self, path):
        await filled(path)
        damage(path)
        with pytest.raises(StoreCorrupt, match="damaged"):
            async with SqliteStore(path):
                pass

    async def test_damage_met_later_refuses_reads_and_all_writes_after_it(self, path, monkeypatch):
        fence = await filled(path)
        damage(path)
        monkeypatch.setattr("streamagent.stores._connection.QUICK_CHECK", 0)
        async with SqliteStore(path) as store:
            with pytest.raises(StoreCorrupt, match="damaged"):
                await rows(store)
            with pytest.raises(StoreCorrupt):
                await store.write("new", [text("a")], fence=fence)
            with pytest.raises(StoreCorrupt):
                await store.acquire("other")

    async def test_damage_met_by_a_write_refuses_all_writes_after_it(self, path, monkeypatch):
        fence = await filled(path)
        damage(path)
        monkeypatch.setattr("streamagent.stores._connection.QUICK_CHECK", 0)
        async with SqliteStore(path) as store:
            with pytest.raises(StoreCorrupt):
                await store.write("s", [text("a")], fence=fence)
            with pytest.raises(StoreCorrupt):
                await store.acquire("other")

    async def test_a_viewer_of_a_damaged_file_says_so(self, path, monkeypatch):
        await filled(path)
        damage(path)
        monkeypatch.setattr("streamagent.stores._connection.QUICK_CHECK", 0)
        async with SqliteStore(path, read_only=True) as viewer:
            with pytest.raises(StoreCorrupt):
                await rows(viewer)

    async def test_of_a_damaged_file_what_is_whole_can_be_read_and_saved(self, path):
        """F28."""
        async with SqliteStore(path) as store:
            for session in ("whole", "broken"):
                fence = await store.acquire(session)
                await store.write(session, [text(f"{session} {number} " * 200) for number in range(40)], fence=fence)
        without_wal(path)
        data = bytearray(Path(path).read_bytes())
        pages = {data.index(b"broken %d " % number) // 4096 * 4096 for number in range(10, 30)}
        page = next(page for page in sorted(pages) if data[page] in (0x0A, 0x0D))  # a leaf: others hold the way to it
        data[page : page + 100] = b"\xff" * 100
        Path(path).write_bytes(data)
        with pytest.raises(StoreCorrupt, match="sessions export"):
            async with SqliteStore(path):
                pass
        async with SqliteStore(path, read_only=True) as viewer:
            assert len([row async for row in viewer.read("whole")]) == 40
            assert b'"end":true' in b"".join([line async for line in export_session(viewer, "whole")])
            with pytest.raises(StoreCorrupt):
                [row async for row in viewer.read("broken")]

    async def test_a_newer_schema_is_refused_and_nothing_is_written(self, path):
        await filled(path, 1)
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA user_version = 99")
        before = without_wal(path).read_bytes()
        with pytest.raises(StoreSchemaError, match=r"shop\.db.*99.*update"):
            async with SqliteStore(path):
                pass
        assert Path(path).read_bytes() == before

    @pytest.mark.parametrize("mark", ["CREATE TABLE t (x)", "PRAGMA user_version = 3", "PRAGMA application_id = 5"])
    async def test_another_applications_database_is_refused_and_nothing_is_written(self, path, mark):
        with closing(sqlite3.connect(path)) as db:
            db.execute(mark)
        before = Path(path).read_bytes()
        with pytest.raises(StoreCorrupt, match=r"shop\.db.*another application"):
            async with SqliteStore(path):
                pass
        assert Path(path).read_bytes() == before

    async def test_an_unknown_failure_names_the_file(self, path):
        from streamagent.stores._connection import translate

        error = translate(sqlite3.ProgrammingError("odd"), path)
        assert type(error) is StoreError
        assert "shop.db" in str(error)


def damage(path):
    """Overwrite the pages of all rows, as a bad disk would; the header and the tables' names stay."""
    with closing(sqlite3.connect(path)) as db:
        [root] = db.execute("SELECT min(rootpage) FROM sqlite_schema WHERE tbl_name = 'messages'").fetchone()
        indexes = db.execute("SELECT rootpage FROM sqlite_schema WHERE tbl_name = 'messages' AND type = 'index'")
        pages = [root, *(page for [page] in indexes)]
    file = without_wal(path)
    data = bytearray(file.read_bytes())
    for page in pages:
        data[(page - 1) * 4096 : page * 4096] = b"\xa5" * 4096
    file.write_bytes(data)


class TestSharing:
    async def test_eight_first_openers_at_once_all_get_the_same_tables(self, path):
        async def first(n):
            async with SqliteStore(path, busy_timeout=30) as store:
                await store.enqueue("s", Message.user(str(n)))

        async with anyio.create_task_group() as tasks:
            for n in range(8):
                tasks.start_soon(first, n)
        async with SqliteStore(path) as store:
            assert sorted(message.content for message in await store.inbox("s")) == list("01234567")

    async def test_two_stores_on_one_file_give_one_sequence(self, path):
        async with SqliteStore(path, busy_timeout=30) as one, SqliteStore(path, busy_timeout=30) as two:
            fence = await one.acquire("s")

            async def write(store):
                for _ in range(20):
                    await store.write("s", [text("x")], fence=fence)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write, one)
                tasks.start_soon(write, two)
            assert [message.sequence for message in await rows(one)] == list(range(1, 41))


WRITER = """
import sys
import anyio
from streamagent.message import Message
from streamagent.stores.sqlite import SqliteStore

async def main(path):
    async with SqliteStore(path, busy_timeout=30) as store:
        fence = await store.acquire("s")
        number = 0
        while True:
            number += 1
            message = Message(content=f"{number} " * 100, more=True)
            store.write_soon("s", message, fence=fence, lag=0)
            [sequence] = await store.write("s", [Message(id=message.id, content="end")], fence=fence)
            print(sequence, flush=True)

try:
    anyio.run(main, sys.argv[1])
except Exception as error:
    print(type(error).__name__, flush=True)
"""


@contextmanager
def writing_child(path):
    child = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        with suppress(BrokenPipeError):
            child.stdout.close()


class TestProcesses:
    @pytest.fixture
    def anyio_backend(self):
        return "asyncio"

    async def test_a_stale_process_loses_its_lease_and_both_have_written_without_gaps(self, path):
        with writing_child(path) as child:
            first = await anyio.to_thread.run_sync(child.stdout.readline)
            async with SqliteStore(path, busy_timeout=30) as store:
                fence = await store.acquire("s")
                [mine] = await store.write("s", [text("mine")], fence=fence)
                lines = (await anyio.to_thread.run_sync(child.stdout.read)).split()
                found = await rows(store)
        assert lines[-1] == "LeaseLost"
        acknowledged = [int(line) for line in [first, *lines[:-1]]]
        assert [message.sequence for message in found] == list(range(1, len(found) + 1))
        assert max(acknowledged) < mine == len(found)

    async def test_everything_acknowledged_is_there_after_a_kill(self, path):
        with writing_child(path) as child:
            for _ in range(25):
                acknowledged = int(await anyio.to_thread.run_sync(child.stdout.readline))
            child.kill()
            acknowledged = int([acknowledged, *child.stdout.read().split("\n")[:-1]][-1])  # the last line may be cut
        async with SqliteStore(path) as store:
            found = await rows(store)
            assert [message.sequence for message in found] == list(range(1, len(found) + 1))
            assert len(found) >= acknowledged
            assert [m.content for m in found[:acknowledged]] == [
                f"{n} " * 100 + "end" for n in range(1, acknowledged + 1)
            ]
            left = await store.unfinished("s")
            assert len(left.open) == len(found) - sum(not message.more for message in found)
            fence = await store.acquire("s")
            closing_rows = [replace(m, content="", more=False, query={"cut": "crashed"}) for m in left.open]
            await store.write("s", [*closing_rows, text("goes on")], fence=fence)
            assert (await contents(store))[-1] == "goes on"

    async def test_a_process_that_leaves_its_store_ends_by_itself(self, path):
        code = (
            "import anyio\nfrom streamagent.stores.sqlite import SqliteStore\n"
            f"async def main():\n    async with SqliteStore({path!r}) as store:\n        raise SystemExit(3)\n"
            "anyio.run(main)"
        )
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", "-c", code], capture_output=True, text=True, timeout=30
        )
        assert (done.returncode, done.stderr) == (3, "")

    async def test_a_lease_is_lost_across_processes_for_lagged_fragments_too(self, path):
        async with SqliteStore(path) as store, SqliteStore(path) as other:
            fence = await store.acquire("s")
            store.write_soon("s", text("a"), fence=fence, lag=LONG)
            await other.acquire("s")
            with pytest.raises(LeaseLost):
                await store.flush("s")
