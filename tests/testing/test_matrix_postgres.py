"""The crash matrix on PostgreSQL; see `test_matrix`."""

import pytest

from .cutting import LAG, LEAST, STEP, Matrix, report

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]


@pytest.fixture(params=[("asyncio", {"use_uvloop": True})], ids=["uvloop"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def where(postgres, schema):
    return f"{postgres.url()}#{schema}"


async def test_cut_by_an_exception_on_postgres(where, tmp_path):
    matrix = Matrix(where, tmp_path)
    names = await matrix.uncut()
    assert report("by exception", "postgres", await matrix.by_exception()) == len(names) >= LEAST


async def test_cut_by_a_kill_on_postgres(where, tmp_path):
    matrix = Matrix(where, tmp_path, lag=LAG)
    names = await matrix.uncut()
    assert report("by kill", "postgres", await matrix.by_kill(step=STEP)) == len(names) >= LEAST
