"""Many streams through one process leave nothing behind; see `stream_soak` for thousands of them."""

import pytest

from streamagent.testing import assert_no_leaks

from .lanes import NOISE
from .stream_soak import soak

pytestmark = [pytest.mark.anyio, NOISE]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("lane", ["direct", "provider"])
async def test_nothing_is_left_of_streams_that_are_read_left_and_cut(lane, anyio_backend):
    await soak(20, lane)  # threads of pools, imports
    async with assert_no_leaks(grace=10):
        found = await soak(200, lane)
    assert (found.whole, found.left, found.cut) == (160, 20, 20)
    assert found.growth < 4 * 1024 * 1024
