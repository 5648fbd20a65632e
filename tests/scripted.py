"""What the tests of the column share beside `streamagent.testing`: a tool, and rows in short."""

from streamagent.testing.checking import check_session as check_rows
from streamagent.testing.scripted import ScriptedModel, answer, call, calls, text
from streamagent.tools.function import tool

__all__ = ["ScriptedModel", "answer", "call", "calls", "check_rows", "rows", "stock", "text"]


@tool
async def stock(product: str) -> int:
    """Units of a product in stock."""
    return 15


async def rows(store, session="s"):
    """A session's rows, in short: (sequence, role, type, content)."""
    return [(row.sequence, row.role, row.type, row.content) async for row in store.read(session)]
