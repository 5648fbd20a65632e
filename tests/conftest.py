"""Every async test runs on asyncio (debug mode), uvloop and trio, unless it names a backend."""

from inspect import iscoroutinefunction
from itertools import count

import pytest
from hypothesis import HealthCheck, settings

from streamagent import MemoryStore, SqliteStore
from streamagent.stores import open_store

settings.register_profile(
    "thorough",
    max_examples=1_000,
    stateful_step_count=40,
    derandomize=False,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

BACKENDS = [
    pytest.param(("asyncio", {"debug": True}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    pytest.param(("trio", {}), id="trio"),
]


@pytest.fixture(params=["memory", "sqlite"])
def either_store(request, tmp_path):
    """A store in memory, and an SQLite file on the backends that it takes."""
    if request.param == "memory":
        return MemoryStore()
    return SqliteStore(tmp_path / "s.db")


@pytest.fixture(params=BACKENDS)
def anyio_backend(request):
    return request.param


class OwnFile(SqliteStore):
    """An agent's own SQLite file, of which a test may ask without opening it."""

    async def read(self, session, **options):
        async with self.reopened() as db:
            async for message in db.read(session, **options):
                yield message

    async def inbox(self, session):
        async with self.reopened() as db:
            return await db.inbox(session)

    async def enqueue(self, session, message, **options):
        async with self.reopened() as db:
            return await db.enqueue(session, message, **options)

    async def usage(self, session, **options):
        async with self.reopened() as db:
            return await db.usage(session, **options)

    async def unfinished(self, session):
        async with self.reopened() as db:
            return await db.unfinished(session)


def pytest_collection_modifyitems(items):
    """Leave out SQLite under trio: aiosqlite is asyncio's."""
    items[:] = [item for item in items if not _impossible(getattr(item, "callspec", None))]


def _impossible(callspec):
    if callspec is None or callspec.params.get("anyio_backend", ("",))[0] != "trio":
        return False
    return "sqlite" in (callspec.params.get("own_stores"), callspec.params.get("either_store"))


def pytest_generate_tests(metafunc):
    """In a module that says `OWN_STORES = True`, run the async tests with both kinds of an agent's own store."""
    if getattr(metafunc.module, "OWN_STORES", False) and iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("own_stores")
        metafunc.parametrize("own_stores", ["memory", "sqlite"])


@pytest.fixture(autouse=True)
def _own_stores(request, tmp_path, monkeypatch):
    """Give agents an SQLite file of their own where that is wanted, on the backends that it takes."""
    wanted = getattr(request.node, "callspec", None)
    if wanted is None or wanted.params.get("own_stores") != "sqlite":
        return
    files = (tmp_path / f"own-{number}.db" for number in count())
    monkeypatch.setattr("streamagent.agent.open_store", lambda given: open_store(given or OwnFile(next(files))))
