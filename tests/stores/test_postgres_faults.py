"""What a PostgreSQL store does when connections, servers and transactions are lost: F29, F30, I2, I6."""

import signal
import threading
from dataclasses import replace

import anyio
import anyio.lowlevel
import psycopg
import pytest

from streamagent.errors import LeaseLost, StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreReadOnly, StoreUncertain
from streamagent.message import Message
from streamagent.records import Owner
from streamagent.stores import _postgres_connection, _postgres_notices, _postgres_writer
from streamagent.stores._postgres_pool import Unsettled
from streamagent.stores._postgres_writer import Mark
from streamagent.stores.postgres import PostgresStore
from streamagent.testing.contract.rows import LONG, contents, rows, text
from tests.conftest import BACKENDS

from .pg_proxy import open_proxy

pytestmark = pytest.mark.anyio

EACH_BACKEND = pytest.mark.parametrize("anyio_backend", BACKENDS)
SOON = 0.5  # seconds
LOST = ["unsent", "unanswered", "stuck", "silent"]  # how the connection is lost at a COMMIT; see pg_proxy


@pytest.fixture
def anyio_backend():
    """The driver runs in threads, so the backend hardly matters; what might is run on each."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def proxy(postgres):
    with open_proxy(postgres.port) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def _no_notices(monkeypatch):
    """Tell nobody what was committed: that takes a connection, and what a proxy does to it is not meant for it."""
    monkeypatch.setattr(_postgres_notices, "PAUSE", 1000.0)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(_postgres_connection, "GRACE", 0.1)


@pytest.fixture
async def store(postgres, schema, proxy):
    """A store that speaks through the proxy; its statements take half a second at most."""
    url = postgres.url(port=proxy.port)
    async with PostgresStore(url, schema=schema, timeout=10, statement_timeout=SOON) as store:
        yield store


@pytest.fixture
async def direct(postgres, schema, store):
    """Another process, with a connection of its own."""
    async with PostgresStore(postgres.url(), schema=schema, timeout=SOON, statement_timeout=SOON) as other:
        yield other


def in_transaction(store, what, session="s"):
    """Do something in the middle of a transaction that writes a row to a session, the first time it is tried."""
    tries = []

    def run(ledger):
        tries.append(1)
        ledger.acquire()
        if len(tries) == 1:
            what(ledger)
        return ledger.fence, len(tries)

    return store._writer.submit(session, run)


class TestLostConnections:
    @pytest.mark.parametrize("abruptly", [False, True])
    async def test_what_idles_is_replaced(self, store, proxy, abruptly):
        fence = await store.acquire("s")
        proxy.cut(abruptly=abruptly)
        assert await store.write("s", [text("a")], fence=fence) == [1]
        proxy.cut(abruptly=abruptly)
        assert await contents(store) == ["a"]

    async def test_a_transaction_that_is_cut_in_its_middle_is_done_again(self, store, proxy):
        assert await in_transaction(store, lambda ledger: proxy.cut()) == (1, 2)
        assert await store.acquire("s") == 2

    @pytest.mark.parametrize("plan", LOST)
    async def test_what_is_lost_at_its_commit_is_there_exactly_once(self, store, direct, proxy, plan):
        fence = await store.acquire("s")
        with anyio.fail_after(9):  # the server itself would end what is stuck after 10 seconds, each time
            for content in "ab":
                proxy.plans += [plan]
                await store.write("s", [text(content)], fence=fence)
            proxy.plans += [plan]
            await store.enqueue("s", Message.user("waits"))
            proxy.plans += [plan]
            assert await store.acquire("s") == fence + 1
        assert proxy.plans == []
        assert [(m.sequence, m.content) for m in await rows(direct)] == [(1, "a"), (2, "b")]
        assert [m.content for m in await direct.inbox("s")] == ["waits"]

    @pytest.mark.parametrize("plan", LOST)
    async def test_fragments_of_a_message_are_not_doubled(self, store, direct, proxy, plan):
        fence = await store.acquire("s")
        message = text("a", more=True)
        for content in "bc":
            proxy.plans += [plan]
            store.write_soon("s", message, fence=fence, lag=LONG)
            await store.flush("s")
            message = replace(message, content=content)
        await store.write("s", [replace(message, more=False)], fence=fence)
        assert await contents(direct) == ["abc"]

    @pytest.mark.parametrize("plan", LOST)
    async def test_what_a_refused_and_a_taken_operation_say_is_what_came_of_them(self, store, proxy, plan):
        """Both are in one transaction, whose answer is lost."""
        await store.acquire("s")
        fence = await store.acquire("s")
        said = []

        async def write(content, fence):
            try:
                said.append(await store.write("s", [text(content)], fence=fence))
            except LeaseLost:
                said.append("refused")

        proxy.plans += [None, plan]
        async with anyio.create_task_group() as tasks:
            for number, given in enumerate((fence, fence - 1, fence, fence)):
                tasks.start_soon(write, str(number), given)
        assert sorted(map(str, said)) == ["[1]", "[2]", "[3]", "refused"]
        assert len(await rows(store)) == 3

    @pytest.mark.parametrize("plan", LOST)
    async def test_forks_and_deletions_too(self, store, direct, proxy, plan):
        await store.write("s", [text("a")], fence=await store.acquire("s"))
        proxy.plans += [plan]
        await store.fork("s", "f")
        assert await contents(direct, "f") == ["a"]
        proxy.plans += [plan]
        assert await store.delete("f") is True
        assert await rows(direct, "f") == []

    async def test_pages_go_on_where_they_were(self, store, proxy):
        fence = await store.acquire("s")
        await store.write("s", [text(f"{n} " + "x" * 2000) for n in range(600)], fence=fence)
        found = []
        async for message in store.read("s"):
            found.append(message.sequence)
            if len(found) % 100 == 0:
                proxy.cut()
        assert found == list(range(1, 601))

    async def test_byte_by_byte_is_only_slower(self, store, proxy):
        proxy.piecewise = True
        await store.write("s", [text("é" * 100)], fence=await store.acquire("s"))
        assert await contents(store) == ["é" * 100]


class TestSilence:
    """The peer is there and says nothing."""

    @pytest.fixture
    async def hasty(self, postgres, schema, proxy):
        url = postgres.url(port=proxy.port, connect_timeout=2)
        store = PostgresStore(url, schema=schema, timeout=SOON, statement_timeout=SOON)
        try:
            async with store:
                yield store
        finally:
            proxy.resume()

    async def test_it_ends_in_an_error_and_the_store_goes_on_afterwards(self, hasty, proxy):
        fence = await hasty.acquire("s")
        proxy.stall()
        with anyio.fail_after(30):
            with pytest.raises(StoreError, match="cannot be reached"):
                await contents(hasty)
            with pytest.raises(StoreError, match="cannot be reached"):
                await hasty.write("s", [text("a")], fence=fence)
        proxy.resume()
        assert await hasty.write("s", [text("b")], fence=fence) == [1]

    @pytest.mark.parametrize(("plan", "expected"), [("unsent", []), ("unanswered", ["a"]), ("silent", ["a"])])
    async def test_what_cannot_be_found_out_is_said(self, hasty, proxy, plan, expected):
        fence = await hasty.acquire("s")
        proxy.plans += [plan]
        proxy.refusing = True
        with anyio.fail_after(10), pytest.raises(StoreUncertain, match="whether this was written"):
            await hasty.write("s", [text("a")], fence=fence)
        proxy.refusing = False
        assert await contents(hasty) == expected

    @pytest.mark.parametrize("plan", ["unsent", "unanswered", "silent"])
    async def test_fragments_that_are_uncertain_are_looked_up_before_they_are_written_again(self, hasty, proxy, plan):
        fence = await hasty.acquire("s")
        message = text("a", more=True)
        store_soon = lambda content: hasty.write_soon(  # noqa: E731
            "s", replace(message, content=content), fence=fence, lag=LONG
        )
        store_soon("a")
        proxy.plans += [plan]
        proxy.refusing = True
        with pytest.raises(StoreUncertain):
            await hasty.flush("s")
        with pytest.raises(StoreUncertain):
            store_soon("lost")
        with pytest.raises(StoreError) as caught:
            await hasty.enqueue("s", Message.user("not even tried"))
        assert type(caught.value) is StoreError
        proxy.refusing = False
        await hasty.write("s", [replace(message, content="b", more=False)], fence=fence)
        assert await contents(hasty) == ["ab"]


@EACH_BACKEND
class TestServers:
    @pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
    async def test_after_a_restart_the_store_goes_on_by_itself(self, store, postgres, kind):
        fence = await store.acquire("s")
        await store.write("s", [text("a")], fence=fence)
        await anyio.to_thread.run_sync(lambda: postgres.stop(kind=kind))
        written = []

        async def write():
            written.extend(await store.write("s", [text("b")], fence=fence))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            await anyio.to_thread.run_sync(postgres.start)
        assert written == [2]
        assert await contents(store) == ["a", "b"]

    async def test_after_a_week_nobody_can_tell(self, store, proxy, monkeypatch):
        """What connections noted is removed then."""
        fence = await store.acquire("s")
        monkeypatch.setattr(_postgres_writer, "Mark", lambda *args: Mark(*args[:2], "2025-01-01T00:00:00.000000Z"))
        proxy.plans += ["unanswered"]
        assert await store.write("s", [text("a")], fence=fence) == [1]
        proxy.plans += ["unsent"]
        with pytest.raises(StoreUncertain, match="more than a week ago"):
            await store.write("s", [text("b")], fence=fence)
        proxy.plans += ["unsent"]
        store.write_soon("s", text("c"), fence=fence, lag=LONG)
        with pytest.raises(StoreUncertain, match="more than a week ago"):
            await store.flush("s")
        assert await store.write("s", [text("d")], fence=fence) == [2]

    async def test_what_is_not_over_yet_is_asked_about_again(self, store, proxy, postgres, schema, monkeypatch):
        """A COMMIT waits for a standby, say."""
        is_there, said = _postgres_writer._is_there, []

        def asked(connection, mark):
            if not said:
                name = mark.connection.name
                other.execute(f"UPDATE {schema}.commits SET number = number WHERE connection = %s", (name,))
            try:
                said.append(is_there(connection, mark))
            except Unsettled:
                said.append("unsettled")
                other.rollback()
                raise
            return said[-1]

        fence = await store.acquire("s")
        monkeypatch.setattr(_postgres_writer, "_is_there", asked)
        proxy.plans += ["unanswered"]
        with psycopg.connect(postgres.url()) as other:
            assert await store.write("s", [text("a")], fence=fence) == [1]
        assert said == ["unsettled", True]
        assert await contents(store) == ["a"]


class TestConflicts:
    @pytest.mark.parametrize("state", ["40001", "40P01"])
    async def test_a_transaction_that_the_server_gives_up_is_done_again_whole(self, store, state):
        def fail(ledger):
            ledger._db.execute(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}'; END $$")

        assert await in_transaction(store, fail) == (1, 2)

    async def test_conflicts_without_an_end_are_an_error_within_the_timeout(self, direct):
        def fail(ledger):
            ledger._db.execute("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")

        with anyio.fail_after(5), pytest.raises(StoreError):
            await direct._writer.submit("s", fail)

    async def test_a_real_deadlock_is_nobodys_error(self, store, direct):
        both_have_one = threading.Barrier(2)
        tries = []

        def crosswise(other):
            def run(ledger):
                tries.append(other)
                ledger.acquire()
                if tries.count(other) == 1:
                    both_have_one.wait(30)
                ledger.sibling(other)

            return run

        for session in "ab":
            await store.acquire(session)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store._writer.submit, "a", crosswise("b"))
            tasks.start_soon(direct._writer.submit, "b", crosswise("a"))
        assert len(tries) > 2 and {*tries} == {"a", "b"}  # one was tried again, or both
        assert (await store.acquire("a"), await store.acquire("b")) == (3, 3)

    async def test_a_bug_in_a_transaction_changes_nothing_and_harms_nobody(self, store):
        def bug(ledger):
            ledger.clear()
            raise ZeroDivisionError

        await store.write("s", [text("a")], fence=await store.acquire("s"))
        with pytest.raises(StoreError):
            await store._writer.submit("s", bug)
        assert await contents(store) == ["a"]
        assert await store.acquire("s") == 2

    async def test_two_stores_race_for_one_session_and_every_row_is_its_holders(self, store, direct):
        """I2, I7: two hundred take-overs; each row carries the fence of whoever held the session when it was given."""
        mine = {"one": set(), "two": set()}

        async def race(name, store):
            for _ in range(100):
                fence = await store.acquire("s")
                mine[name].add(fence)
                for _ in range(2):
                    try:
                        await store.write("s", [text(name)], fence=fence)
                    except LeaseLost:
                        break

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(race, "one", store)
            tasks.start_soon(race, "two", direct)
        found = await rows(store)
        assert [row.sequence for row in found] == list(range(1, len(found) + 1))
        stored = await store._pool.ask(
            lambda connection: connection.execute("SELECT fence, content FROM messages ORDER BY sequence").fetchall()
        )
        assert [fence for fence, _ in stored] == sorted(fence for fence, _ in stored)
        assert all(fence in mine[name] for fence, name in stored)
        assert sorted(mine["one"] | mine["two"]) == list(range(1, 201))

    async def test_two_stores_write_with_one_fence_and_give_one_sequence(self, store, direct):
        fence = await store.acquire("s")

        async def write(store):
            for _ in range(20):
                await store.write("s", [text("x")], fence=fence)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, store)
            tasks.start_soon(write, direct)
        assert [message.sequence for message in await rows(store)] == list(range(1, 41))

    async def test_first_prompts_at_once_from_many_stores_are_all_there(self, store, direct):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon((store, direct)[number % 2].enqueue, "new", Message.user(str(number)))
        assert sorted(int(m.content) for m in await store.inbox("new")) == list(range(20))

    async def test_one_client_key_from_two_stores_is_one_message(self, store, direct):
        ids = set()

        async def send(store):
            ids.add((await store.enqueue("new", Message.user("hi"), client_key="k")).id)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(send, (store, direct)[number % 2])
        assert len(ids) == 1

    async def test_the_fence_holds_even_without_the_lock(self, store):
        """The statement that gives sequences refuses by itself."""

        def transaction(connection):
            from streamagent.stores._row import Row
            from streamagent.stores._tables import TableLedger

            ledger = TableLedger(connection, "default", "s", now="2025-01-01T00:00:00.000000Z")
            ledger.write([Row.of(text("late"))], fence=1)
            connection.execute("UPDATE leases SET fence = fence + 1")
            with pytest.raises(LeaseLost):
                ledger.save()

        await store.acquire("s")
        await store._pool.run(transaction)
        assert await rows(store) == []


@EACH_BACKEND
class TestWaiting:
    async def test_a_session_that_is_locked_elsewhere_is_busy_and_free_again(self, direct, postgres, schema):
        fence = await direct.acquire("s")
        with psycopg.connect(postgres.url()) as other:
            other.execute(f"SELECT * FROM {schema}.leases FOR UPDATE")
            with pytest.raises(StoreBusy, match="another writer holds"):
                await direct.write("s", [text("a")], fence=fence)
        assert await direct.write("s", [text("b")], fence=fence) == [1]

    async def test_a_statement_that_takes_too_long_is_ended(self, direct):
        with anyio.fail_after(5), pytest.raises(StoreBusy, match="statement_timeout="):
            await direct._pool.ask(lambda connection: connection.execute("SELECT pg_sleep(30)"))
        assert await rows(direct) == []

    async def test_more_than_the_pool_wait_for_so_long_and_are_told_its_option(self, postgres, schema, store):
        async with PostgresStore(postgres.url(), schema=schema, pool=2, timeout=SOON) as small:
            over = threading.Event()
            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    tasks.start_soon(small._pool.ask, lambda connection: over.wait(5))
                while small._pool._room.value:
                    await anyio.lowlevel.checkpoint()
                with pytest.raises(StoreBusy, match=r"pool=2"):
                    await small.inbox("s")
                over.set()
            assert await small.inbox("s") == []

    async def test_no_more_connections_than_the_pool(self, postgres, schema, store):
        url = postgres.url(application_name="counted")
        async with PostgresStore(url, schema=schema, pool=2) as small:
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(small.enqueue, f"s{number}", Message.user("hi"))
                    tasks.start_soon(small.inbox, f"s{number}")
            assert postgres.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'") == [
                (2,)
            ]

    async def test_no_connection_is_held_between_two_pages(self, store):
        fence = await store.acquire("s")
        await store.write("s", [text("x" * 2000) for _ in range(300)], fence=fence)
        async for _ in store.read("s"):
            assert store._pool._room.value == 4

    async def test_a_caller_that_is_cancelled_leaves_at_once_and_its_connection_serves_on(self, store):
        began, over = threading.Event(), threading.Event()

        def slow(connection):
            began.set()
            over.wait(5)
            return connection.execute("SELECT pg_backend_pid()").fetchone()

        before = await store._pool.ask(lambda connection: connection.raw.info.backend_pid)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store._pool.ask, slow)
            await anyio.to_thread.run_sync(began.wait)
            tasks.cancel_scope.cancel()
        assert not over.is_set()
        over.set()
        with anyio.fail_after(5):
            while store._pool._room.value < 4:
                await anyio.lowlevel.checkpoint()
        assert [connection.raw.info.backend_pid for connection in store._pool._idle] == [before]

    async def test_a_write_whose_caller_was_cancelled_still_happens(self, store):
        fence = await store.acquire("s")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.write("s", [text("a")], fence=fence)
        assert scope.cancelled_caught
        assert await contents(store) == ["a"]

    async def test_leaving_commits_what_waits_also_when_it_is_cancelled(self, postgres, schema, direct):
        with anyio.CancelScope() as scope:
            async with PostgresStore(postgres.url(), schema=schema) as store:
                store.write_soon("s", text("a"), fence=await store.acquire("s"), lag=LONG)
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        assert await contents(direct) == ["a"]

    async def test_an_error_in_the_block_comes_out_as_it_is(self, postgres, schema):
        with pytest.raises(ZeroDivisionError):
            async with PostgresStore(postgres.url(), schema=schema):
                raise ZeroDivisionError

    async def test_what_waits_in_a_transaction_of_a_process_that_stopped_is_ended_by_the_server(self, store):
        asked = "SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout')"
        assert await store._pool.ask(lambda connection: connection.execute(asked).fetchone()) == ("10s", "450ms")

    async def test_a_lease_ends_by_the_databases_clock(self, store, monkeypatch):
        """F41: a machine whose clock is an hour off neither loses what it holds nor takes what others hold."""
        monkeypatch.setattr("streamagent.message.utc_now", lambda: pytest.fail("its own clock"))
        owner = Owner(id="mine", ttl=1000.0)
        await store.acquire("s", owner=owner)
        await store.heartbeat(owner)
        assert await store.unattended() == []


@pytest.mark.parametrize(
    ("state", "kind", "advice"),
    [
        ("53100", StoreFull, "make room"),
        ("53300", StoreBusy, "max_connections"),
        ("25006", StoreReadOnly, "primary"),
        ("42501", StoreReadOnly, "grant"),
        ("42P01", StoreCorrupt, "tables are missing"),
        ("XX001", StoreCorrupt, "damaged"),
        ("54000", StoreError, "too long for an index"),
        ("22012", StoreError, "PostgreSQL refused"),
    ],
)
async def test_what_the_server_says_becomes_what_to_do(direct, state, kind, advice):
    raising = f"DO $$ BEGIN RAISE EXCEPTION 'said so' USING ERRCODE = '{state}'; END $$"
    with pytest.raises(StoreError, match=f"postgresql://app@127.0.0.1.*{advice}.*said so") as caught:
        await direct._pool.ask(lambda connection: connection.execute(raising))
    assert type(caught.value) is kind
