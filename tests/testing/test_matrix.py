"""The crash matrix in memory and on SQLite: cut at any point, a session comes to the rows that it has without a cut."""

import pytest

from streamagent import MemoryStore

from .cutting import LAG, LEAST, SAMPLE, STEP, open_matrix, report

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]


@pytest.fixture(params=[("asyncio", {"use_uvloop": True})], ids=["uvloop"])
def anyio_backend(request):
    return request.param


@pytest.mark.parametrize("gated", ["refund", "ship"])
async def test_cut_by_an_exception_in_memory(tmp_path, gated, figure):
    async with open_matrix(MemoryStore(), tmp_path, gated=gated) as matrix:
        assert (
            report(figure, f"exception in memory, {gated} gated", await matrix.by_exception())
            == len(matrix.names)
            >= LEAST
        )


async def test_cut_by_an_exception_twice_in_memory(tmp_path, figure):
    """The process that goes on is cut, too, at each of its points."""
    async with open_matrix(MemoryStore(), tmp_path) as matrix:
        points = [await matrix.by_exception(first=name) for name in SAMPLE]
    assert report(figure, f"exception in memory behind {len(SAMPLE)} first ones", sum(points)) >= LEAST


async def test_cut_by_an_exception_on_sqlite(tmp_path, figure):
    async with open_matrix(str(tmp_path / "s.db"), tmp_path, lag=LAG) as matrix:
        assert report(figure, "exception on SQLite", await matrix.by_exception()) == len(matrix.names) >= LEAST


async def test_cut_by_a_kill_on_sqlite(tmp_path, figure):
    async with open_matrix(str(tmp_path / "s.db"), tmp_path) as matrix:
        points = await matrix.by_kill(step=STEP or 1)
        assert report(figure, "os._exit on SQLite", points, STEP or 1) == len(matrix.names) >= LEAST


async def test_cut_by_a_kill_twice_on_sqlite(tmp_path, figure):
    async with open_matrix(str(tmp_path / "s.db"), tmp_path, lag=LAG) as matrix:
        points = await matrix.by_kill(first="tool stock 1 after", step=STEP or 10)
    assert report(figure, "os._exit on SQLite behind a first one", points, STEP or 10) >= LEAST
