"""What the soak knows of who wrote: it sees a foreign row under a fence that is another one's (I7)."""

import pytest

from streamagent.message import Message
from streamagent.stores.postgres import PostgresStore
from streamagent.testing import check_session

from .audit import audit, writes

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_row_of_another_process_under_the_same_fence_is_seen(postgres, schema):
    mine, other = (PostgresStore(postgres.url(application_name=name), schema=schema) for name in ("mine", "other"))
    async with mine, other:
        audit(postgres, schema)
        fence = await mine.acquire("s")
        await mine.enqueue("s", Message.user("Go."))
        await mine.admit("s", fence=fence)
        await mine.write("s", [Message.stop("stop")], fence=fence)
        rows = await check_session(mine, writes=writes(postgres, schema)["s"])
        assert [(write.owner, write.id) for write in writes(postgres, schema)["s"]] == [("mine", r.id) for r in rows]
        await other.write("s", [Message.user("And?"), Message.stop("stop")], fence=fence)
        with pytest.raises(AssertionError, match=rf"(?m)^I7: fence {fence} has the owners mine and other"):
            await check_session(mine, writes=writes(postgres, schema)["s"])
