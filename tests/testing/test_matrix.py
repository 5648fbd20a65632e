"""The crash matrix in memory and on SQLite: cut at any point, a session comes to the rows that it has without a cut."""

import pytest

from streamagent import MemoryStore

from .cutting import LAG, LEAST, SAMPLE, STEP, Matrix, report

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]


@pytest.fixture(params=[("asyncio", {"use_uvloop": True})], ids=["uvloop"])
def anyio_backend(request):
    return request.param


@pytest.mark.parametrize("options", [{}, {"gated": "ship"}], ids=["", "gated"])
async def test_cut_by_an_exception_in_memory(tmp_path, options):
    matrix = Matrix(MemoryStore(), tmp_path, **options)
    names = await matrix.uncut()
    assert report("by exception", "memory", await matrix.by_exception()) == len(names) >= LEAST


async def test_cut_by_an_exception_twice_in_memory(tmp_path):
    """The process that goes on is cut, too, at each of its points."""
    matrix = Matrix(MemoryStore(), tmp_path)
    names = await matrix.uncut()
    points = [await matrix.by_exception(first=names.index(name) + 1) for name in SAMPLE]
    assert report("by exception, twice", "memory", sum(points)) >= LEAST


async def test_cut_by_an_exception_on_sqlite(tmp_path):
    matrix = Matrix(str(tmp_path / "s.db"), tmp_path, lag=LAG)
    names = await matrix.uncut()
    assert report("by exception", "sqlite", await matrix.by_exception()) == len(names) >= LEAST


async def test_cut_by_a_kill_on_sqlite(tmp_path):
    matrix = Matrix(str(tmp_path / "s.db"), tmp_path)
    names = await matrix.uncut()
    assert report("by kill", "sqlite", await matrix.by_kill(step=STEP)) == len(names) >= LEAST
