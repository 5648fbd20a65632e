"""Followers of a PostgreSQL store hear at once what other processes write, and without a word all the same."""

import anyio
import pytest

from streamagent.follow import Follow
from streamagent.message import Message
from streamagent.stores import _postgres_notices
from streamagent.stores.postgres import PostgresStore
from tests.conftest import BACKENDS

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", BACKENDS)]

NEVER = 1000.0  # seconds between two polls: whoever hears of something heard it by a notification


@pytest.fixture
def make(postgres, schema):
    """Make a store in the test's own schema: each stands for a process."""
    return lambda **options: PostgresStore(postgres.url(), **{"schema": schema, **options})


async def written(store, *contents, session="s"):
    await store.write(session, [Message(content=content) for content in contents], fence=await store.acquire(session))


async def until_it_listens(postgres):
    while not postgres.execute("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"):
        await anyio.sleep(0.01)


async def test_a_commit_of_another_process_is_heard_at_once(make, postgres):
    async with make(poll=NEVER) as writer, make(poll=NEVER) as viewer, Follow(viewer, "s") as follow:
        async with anyio.create_task_group() as tasks:
            heard = []

            async def listen():
                async for message in follow:
                    heard.append(message.content)
                    if len(heard) == 2:
                        return

            tasks.start_soon(listen)
            await until_it_listens(postgres)
            await written(writer, "one")
            await written(writer, "two")
        assert heard == ["one", "two"]


async def test_other_tenants_and_schemas_are_not_told(schema):
    channels = {
        _postgres_notices.channel(schema=one, tenant=two) for one in (schema, "other") for two in ("default", "other")
    }
    assert len(channels) == 4


async def test_without_a_word_the_poll_finds_it(make, monkeypatch):
    monkeypatch.setattr(_postgres_notices, "_NOTIFY", "SELECT ?, ?")
    async with make() as writer, make(poll=0.05) as viewer, Follow(viewer, "s") as follow:
        await written(writer, "one")
        assert (await anext(follow)).content == "one"


async def test_a_listener_that_was_lost_is_replaced(make, postgres, monkeypatch):
    monkeypatch.setattr(_postgres_notices, "_AGAIN", 0.05)
    async with (
        make(poll=NEVER) as writer,
        make(poll=NEVER) as viewer,
        Follow(viewer, "s") as follow,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(anext, follow)
        await until_it_listens(postgres)
        postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        await written(writer, "one")


async def test_without_followers_nobody_listens(make, postgres):
    async with make() as store:
        await written(store, "one")
        assert postgres.execute("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'") == []


async def test_hints_are_no_part_of_a_write(make, monkeypatch):
    async with make() as store:
        monkeypatch.setattr(_postgres_notices, "_NOTIFY", "SELECT ?::int, ?::int")  # which fails
        await written(store, "one")
        await anyio.sleep(2 * _postgres_notices.PAUSE)
        assert [message.content async for message in store.read("s")] == ["one"]
