"""What a PostgreSQL store does when its server crashes and forgets what was not in its log on disk: I2, I6."""

from dataclasses import replace

import anyio
import anyio.lowlevel
import psycopg
import pytest

from streamagent.message import Message
from streamagent.stores import _postgres_connection
from streamagent.stores.postgres import PostgresStore
from streamagent.testing.contract.rows import LONG, contents, text
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    """The driver runs in threads, so the backend hardly matters."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
def server():
    """A server to be crashed, which takes its time to write what no commit waits for."""
    server = PostgresServer()
    server.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    server.execute("SELECT pg_reload_conf()")
    server.execute("CREATE TABLE elsewhere (number INTEGER)")
    yield server
    server.remove()


@pytest.fixture
async def store(server):
    server.execute("DROP SCHEMA IF EXISTS streamagent CASCADE")
    async with PostgresStore(server.url(), timeout=20) as store:
        yield store


@pytest.fixture
def crash(server, monkeypatch):
    """Crash the server at the next COMMIT, before or after it is carried out; afterwards others write, too."""
    tell = _postgres_connection.Connection.tell

    def arm(*, done, others):
        def crashing(self, sql):
            if sql != b"COMMIT":
                return tell(self, sql)
            monkeypatch.setattr(_postgres_connection.Connection, "tell", tell)
            if done:
                tell(self, sql)
            server.crash()
            for number in range(others):
                server.execute("INSERT INTO elsewhere VALUES (%s)", number)
            return tell(self, b"SELECT")  # the server that it was said to has gone

        monkeypatch.setattr(_postgres_connection.Connection, "tell", crashing)

    return arm


async def test_text_that_was_stored_survives_a_crash_that_the_run_survives(store, server):
    fence = await store.acquire("s")
    message = text("a", more=True)
    await store.write("s", [message], fence=fence)
    store.write_soon("s", replace(message, content="b"), fence=fence, lag=0.001)
    with anyio.fail_after(5):
        while server.execute("SELECT size FROM streamagent.messages") != [(2,)]:  # a read by the store would sync it
            await anyio.lowlevel.checkpoint()
    server.crash()
    await store.write("s", [replace(message, content="c", more=False)], fence=fence)
    assert await contents(store) == ["abc"]


@pytest.mark.parametrize("others", [0, 5])
@pytest.mark.parametrize("done", [False, True])
class TestAtACommit:
    """The server that recovered gives the numbers of transactions again that it lost."""

    async def test_a_prompt_is_there_exactly_once(self, store, crash, done, others):
        await store.enqueue("s", Message.user("before"))
        crash(done=done, others=others)
        await store.enqueue("s", Message.user("meanwhile"))
        assert [message.content for message in await store.inbox("s")] == ["before", "meanwhile"]

    async def test_a_fence_is_raised_once(self, store, crash, done, others):
        """Nothing else tells that this was done."""
        fence = await store.acquire("s")
        crash(done=done, others=others)
        assert await store.acquire("s") == fence + 1
        assert await store.acquire("s") == fence + 2

    async def test_text_is_not_doubled(self, store, crash, done, others):
        fence = await store.acquire("s")
        message = text("a", more=True)
        await store.write("s", [message], fence=fence)
        store.write_soon("s", replace(message, content="b"), fence=fence, lag=LONG)
        crash(done=done, others=others)
        await store.flush("s")
        await store.write("s", [replace(message, content="c", more=False)], fence=fence)
        assert await contents(store) == ["abc"]


def test_the_server_does_give_numbers_again(server):
    """Why the store does not go by them."""
    db = psycopg.connect(server.url())
    [lost] = db.execute("SELECT pg_current_xact_id()::text").fetchone()
    server.crash()
    db.close()
    [given] = server.execute("SELECT pg_current_xact_id()::text")[0]
    assert int(given) <= int(lost)
