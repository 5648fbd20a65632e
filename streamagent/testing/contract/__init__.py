"""What every store does, as tests: a store's test module subclasses `StoreContract`.

class TestMyStore(StoreContract):
    async def make_store(self):
        return MyStore(self.folder / "my.db")
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from streamagent.protocols import Store

from .beginning import BeginningContract
from .following import FollowContract
from .fork_trees import ForkTreeContract
from .forks import ForkContract
from .inbox import InboxContract
from .keeping import KeepingContract
from .leases import EffectContract, LeaseContract
from .reading import ReadingContract
from .summaries import SummaryContract
from .writing import WritingContract


@pytest.mark.anyio
class StoreContract(
    LeaseContract,
    BeginningContract,
    EffectContract,
    WritingContract,
    InboxContract,
    ReadingContract,
    SummaryContract,
    ForkContract,
    ForkTreeContract,
    FollowContract,
    KeepingContract,
):
    """All that is asked of a store; every test gets a new and empty one.

    The tests are async: anyio's pytest plugin runs them on the backends that your `anyio_backend` fixture names.

    Attributes:
        folder: An empty folder of the test.
    """

    folder: Path

    async def make_store(self) -> Store:
        """Make a store that nobody has used before; the test enters and leaves it."""
        raise NotImplementedError(f"{type(self).__name__} needs: async def make_store(self) -> Store")

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncGenerator[Store, None]:
        """Open the store of a test."""
        self.folder = tmp_path
        async with await self.make_store() as store:
            yield store
