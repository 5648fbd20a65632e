"""Lives of sessions by seeds, first half."""

import pytest

from .seeds import BLOCKS, TIMEOUT, failures

pytestmark = TIMEOUT


@pytest.mark.parametrize("block", range(BLOCKS // 2))
def test_many_seeds_keep_all_invariants(block, record_property):
    assert failures(block, record_property) == []
