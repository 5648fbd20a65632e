"""Which rows are of an attempt that a crash has cut, and that another one supersedes."""

from __future__ import annotations

from contextlib import aclosing

from .message import Message
from .protocols import Stream


async def latest(rows: Stream, *, stops: bool = False) -> Stream:
    """Leave out what a later attempt at the same turn supersedes; a turn is held until it is known that it stands.

    Args:
        rows: The rows of a session; they are closed at the end.
        stops: The `stop` of such an attempt passes: it tells what that took.
    """
    turn: list[Message] = []
    async with aclosing(rows):
        async for row in rows:
            if row.role == "assistant" and row.type != "stop":
                turn.append(row)
                continue
            if row.query and row.query.get("cut") == "resumed":
                if row.type == "stop":
                    turn.clear()
                    if stops:
                        yield row
                continue
            for said in turn:
                yield said
            turn.clear()
            yield row
        for said in turn:
            yield said
