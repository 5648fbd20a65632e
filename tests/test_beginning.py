"""What a run begins with, in a store that does a step of it its own way."""

from dataclasses import replace

import pytest

from streamagent import Agent, MemoryStore, Pipeline, Runtime, SqliteStore, persist
from tests.scripted import ScriptedModel, answer

pytestmark = pytest.mark.anyio


def without_secrets(message):
    return replace(message, content=message.content.replace("secret", "***"))


class Redacting(SqliteStore):
    async def enqueue(self, session, message, **options):
        return await super().enqueue(session, without_secrets(message), **options)


class Wrapper:
    """Has what the store has, by asking it."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def enqueue(self, session, message, **options):
        return await self._store.enqueue(session, without_secrets(message), **options)

    async def __aenter__(self):
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *error):
        return await self._store.__aexit__(*error)


def stores(folder):
    yield Redacting(folder / "a.db")
    yield Wrapper(SqliteStore(folder / "b.db"))
    yield Wrapper(MemoryStore())


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_step_that_a_store_does_its_own_way_is_not_gone_past(tmp_path):
    agent = Agent(ScriptedModel(answer("Yes."), answer("Yes."), answer("Yes.")), pipeline=Pipeline(reply=[persist()]))
    for store in stores(tmp_path):
        async with Runtime(store=store) as runtime, agent.session("s", runtime=runtime) as session:
            await session.ask("my secret")
            told = [m.content async for m in session.history()]
            assert told == ["my ***", "Yes.", ""]
