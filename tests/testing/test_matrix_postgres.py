"""The crash matrix on PostgreSQL; see `test_matrix`."""

import pytest

from .cutting import LAG, LEAST, STEP, open_matrix, report

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]


@pytest.fixture(params=[("asyncio", {"use_uvloop": True})], ids=["uvloop"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def where(postgres, schema):
    return f"{postgres.url()}#{schema}"


async def test_cut_by_an_exception_on_postgres(where, tmp_path, figure):
    async with open_matrix(where, tmp_path, lag=LAG) as matrix:
        assert report(figure, "exception on PostgreSQL", await matrix.by_exception()) == len(matrix.names) >= LEAST


async def test_cut_by_a_kill_on_postgres(where, tmp_path, figure):
    async with open_matrix(where, tmp_path) as matrix:
        points = await matrix.by_kill(step=STEP or 4)
        assert report(figure, "os._exit on PostgreSQL", points, STEP or 4) == len(matrix.names) >= LEAST
