"""Every async test runs on asyncio (debug mode), uvloop and trio, unless it names a backend."""

import gc
from functools import partial
from inspect import iscoroutinefunction
from itertools import count

import pytest
from hypothesis import HealthCheck, settings

from streamagent import MemoryStore, SqliteStore
from streamagent.stores import open_store
from streamagent.stores.postgres import PostgresStore
from tests.postgres_server import PostgresServer

settings.register_profile(
    "thorough",
    max_examples=1_000,
    stateful_step_count=40,
    derandomize=False,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

settings.register_profile("patient", settings(), deadline=None)  # a busy machine is no fault of the code
settings.load_profile("patient")

_numbers = count()

LONGEST = [
    "test_matrix.py",
    "test_soak.py",
    "test_seeds_1.py",
    "test_seeds_2.py",
    "test_benchmarks.py",
    "test_matrix_postgres.py",
    "test_subagents.py",
    "test_approvals.py",
    "test_local.py",
    "test_lane_fuzz.py",
    "test_lane_faults.py",
    "test_pipelines.py",
    "test_archive.py",
    "test_bus.py",
    "test_stream_soak.py",
]

BACKENDS = [
    pytest.param(("asyncio", {"debug": True}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    pytest.param(("trio", {}), id="trio"),
]


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server, one a process of the suite; it starts with the first test that wants it."""
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture
def schema(postgres):
    """A name for a schema of the test's own."""
    name = f"test_{next(_numbers)}"
    yield name
    postgres.drop(name)


@pytest.fixture
def figure(record_property):
    """Give a function of a text that stands in the summary of the run."""
    return partial(record_property, "figure")


def pytest_terminal_summary(terminalreporter):
    """Say what was counted: workers of the suite have no output of their own, but their reports come here."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    told = [pair for report in reports if getattr(report, "when", "") == "call" for pair in report.user_properties]
    lines = sorted(text for name, text in told if name == "figure")
    if seeds := [counted for name, counted in told if name == "seeds"]:
        number, seconds = map(sum, zip(*seeds, strict=True))
        lines.append(f"{number:,} seeds in {seconds:.0f} s of CPU")
    if lines:
        terminalreporter.section("figures")
        terminalreporter.write("".join(f"{line}\n" for line in lines))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def either_store(request):
    """A store in memory, an SQLite file on the backends that it takes, and a PostgreSQL schema on one of them."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "sqlite":
        return SqliteStore(request.getfixturevalue("tmp_path") / "s.db")
    return PostgresStore(request.getfixturevalue("postgres").url(), schema=request.getfixturevalue("schema"))


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
    """Leave out SQLite under trio, because aiosqlite is asyncio's, and PostgreSQL but on uvloop, the fastest.

    The files that take longest come first, so that no core waits for the last of them.
    """
    items[:] = [item for item in items if not _impossible(getattr(item, "callspec", None))]
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_collection_finish():
    """Leave what is imported out of every search for garbage: the checks for leaks make hundreds of them."""
    gc.collect()
    gc.freeze()


def _impossible(callspec):
    backend = None if callspec is None else callspec.params.get("anyio_backend")
    if backend is None:
        return False
    stores = (callspec.params.get("own_stores"), callspec.params.get("either_store"))
    return ("sqlite" in stores and backend[0] == "trio") or ("postgres" in stores and backend != BACKENDS[1].values[0])


def pytest_generate_tests(metafunc):
    """In a module that says `OWN_STORES = True`, run the async tests with both kinds of an agent's own store."""
    if getattr(metafunc.module, "OWN_STORES", False) and iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("own_stores")
        metafunc.parametrize("own_stores", ["memory", "sqlite"])


@pytest.fixture(autouse=True)
def _own_stores(request):
    """Give agents an SQLite file of their own where that is wanted, on the backends that it takes."""
    wanted = getattr(request.node, "callspec", None)
    if wanted is None or wanted.params.get("own_stores") != "sqlite":
        return
    folder, monkeypatch = map(request.getfixturevalue, ("tmp_path", "monkeypatch"))  # most tests need neither
    files = (folder / f"own-{number}.db" for number in count())
    monkeypatch.setattr("streamagent.agent.open_store", lambda given: open_store(given or OwnFile(next(files))))
