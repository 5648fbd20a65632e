"""PostgresStore passes the contract; its tables, its options, and what it says about them."""

import pytest

from streamagent.stores.postgres import PostgresStore

from .contract import StoreContract
from .forks import ForkContract

pytestmark = pytest.mark.anyio

# The driver runs in threads, so that the backend hardly matters: what follows runs on one of them, and some on each.
ASYNCIO = pytest.mark.parametrize("anyio_backend", [("asyncio", {"debug": True})], ids=["asyncio"])


@pytest.fixture
async def store(postgres, schema):
    async with PostgresStore(postgres.url(), schema=schema) as store:
        yield store


@ASYNCIO
class TestContract(StoreContract):
    pass


@ASYNCIO
class TestForks(ForkContract):
    pass
