"""Which rows are of an attempt that a crash has cut, and that another one supersedes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import cast

from .message import Message
from .protocols import Stream
from .talk import Item, Pages, Talk


async def latest(rows: Stream, *, stops: bool = False) -> Stream:
    """Leave out what a later attempt at the same turn supersedes; a turn is held until it is known that it stands.

    Args:
        rows: The rows of a session; they are closed at the end.
        stops: The `stop` of such an attempt passes: it tells what that took.
    """
    turn: list[Message] = []
    async with aclosing(rows):
        async for row in rows:
            for kept in _standing((row,), turn, stops=stops):
                yield cast("Message", kept)
        for said in turn:
            yield said


async def latest_pages(pages: Pages) -> Pages:
    """Do for pages what `latest` does for rows."""
    turn: list[Message] = []
    async with aclosing(pages):
        async for page in pages:
            if kept := _standing(page, turn):
                yield kept
        if turn:
            yield turn


def _standing(page: Sequence[Item], turn: list[Message], *, stops: bool = False) -> list[Item]:
    """Return what stands of a page; `turn` has what is held, before and after."""
    kept: list[Item] = []
    for item in page:
        if not isinstance(item, Talk):
            if item.role == "assistant" and item.type != "stop":
                turn.append(item)
                continue
            if item.query and item.query.get("cut") == "resumed":
                if item.type == "stop":
                    turn.clear()
                    kept += [item] * stops
                continue
        kept += turn
        turn.clear()
        kept.append(item)
    return kept
