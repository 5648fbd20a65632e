"""Every async test runs on asyncio (debug mode), uvloop and trio, unless it names a backend."""

import pytest

from streamagent import MemoryStore, SqliteStore

BACKENDS = [
    pytest.param(("asyncio", {"debug": True}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    pytest.param(("trio", {}), id="trio"),
]


@pytest.fixture(params=["memory", "sqlite"])
def either_store(request, anyio_backend_name, tmp_path):
    """A store in memory, and an SQLite file on the backends that it takes."""
    if request.param == "memory":
        return MemoryStore()
    if anyio_backend_name == "trio":
        pytest.skip("aiosqlite is asyncio's")
    return SqliteStore(tmp_path / "s.db")


@pytest.fixture(params=BACKENDS)
def anyio_backend(request):
    return request.param
