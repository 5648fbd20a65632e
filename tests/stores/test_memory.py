import pytest

from streamagent.message import Message
from streamagent.stores.memory import MemoryStore
from streamagent.testing.contract import StoreContract
from streamagent.testing.contract.rows import contents

pytestmark = pytest.mark.anyio


class TestMemoryStore(StoreContract):
    async def make_store(self):
        return MemoryStore()


async def test_it_may_be_entered_by_several_at_once_and_stays_open():
    store = MemoryStore()
    async with store as first, store as second:
        assert first is second is store
    fence = await store.acquire("s")
    await store.write("s", [Message.user("hi")], fence=fence)
    assert await contents(store) == ["hi"]


async def test_two_stores_know_nothing_of_each_other():
    one, other = MemoryStore(tenant="one"), MemoryStore(tenant="other")
    await one.enqueue("s", Message.user("hi"))
    assert await other.inbox("s") == []


async def test_asking_for_a_session_leaves_no_trace():
    store = MemoryStore()
    await store.unfinished("s")
    await store.delete("s")
    assert store._ledgers == {}
