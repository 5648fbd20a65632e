"""How the rows of a page become messages and, where it can be, a `Talk`: of that a long context mostly consists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from streamagent.message import Message
from streamagent.talk import Item, Talk

from ._making import make_message
from ._select import COLUMNS, decode, to_row

Values = Sequence[Any]  # of a row, in the order of `COLUMNS`

_PROMPT, _ANSWER, _THOUGHTS, _STOP = range(1, 5)
# What a row may be in a talk, if nothing else is odd about it; NULL for all others. One expression and four columns
# more are what it is found with: each column of a row costs as much as finding it.
_KIND = f"""
    CASE WHEN state = 'closed' AND attempt = 1 AND source IS NULL THEN CASE type
        WHEN 'text' THEN CASE WHEN query IS NULL THEN CASE role
            WHEN 'user' THEN {_PROMPT} WHEN 'assistant' THEN {_ANSWER} END END
        WHEN 'reasoning' THEN CASE WHEN role = 'assistant' AND (size = 0 OR content <> '') THEN {_THOUGHTS} END
        WHEN 'stop' THEN CASE WHEN role = 'assistant' AND size = 0 THEN {_STOP} END
    END END
"""
TALK_COLUMNS = f"{_KIND}, sequence, created_at, query, content"
MIXED_COLUMNS = f"{COLUMNS}, {_KIND}"


def to_message(session: str, values: Values) -> Message:
    """Build a message of a row's columns; without the detour by `Row`, because a context is long."""
    message_id, sequence, prev, role, type_, state, attempt, _, _, created_at, query, content, *_ = values
    try:
        facts, moment = decode(role, attempt, content, query, created_at)
    except ValueError:
        return to_row(values).message(session)
    more = state == "open"
    return make_message(message_id, session, sequence, prev, role, type_, content, facts, more, attempt, moment)


def to_messages(session: str, rows: Sequence[Values]) -> list[Message]:
    """Build the messages of rows."""
    return [to_message(session, values) for values in rows]


def to_items(session: str, rows: Sequence[Values]) -> list[Item]:
    """Build a `Talk` of each stretch of rows that is one, and messages of the rest; they have `MIXED_COLUMNS`."""
    items: list[Item] = []
    index = 0
    while index < len(rows):
        talk, length, seen = to_talk(_talk_columns(rows, index))
        if talk is not None:
            items.append(talk)
        items += to_messages(session, rows[index + length : index + max(seen, 1)])
        index += max(seen, 1)
    return items


def _talk_columns(rows: Sequence[Values], first: int) -> Iterable[Values]:
    for index in range(first, len(rows)):
        _, sequence, _, _, _, _, _, _, _, created_at, query, content, _, _, kind = rows[index]
        yield kind, sequence, created_at, query, content


def to_talk(rows: Iterable[Values], limit: float = math.inf) -> tuple[Talk | None, int, int]:
    """Make a `Talk` of whole exchanges at the beginning of rows; in one loop without calls, as there are many rows.

    Args:
        rows: They have `TALK_COLUMNS`; the first that is none of a talk is the last that is taken.
        limit: Characters after which to stop.

    Returns:
        What they are, if there is one, how many rows that takes, and how many more need no second look.
    """
    entries: list[dict[str, Any]] = []
    chars = seen = said = last = 0
    before = (0, 0, 0, 0)  # what there was before the last prompt: entries, characters, rows, the last sequence
    with suppress(ValueError, TypeError):  # a row that cannot be read, as another program wrote it
        for kind, sequence, created_at, query, content in rows:
            if not kind or not isinstance(content, str):
                break
            _as_time(created_at)
            if kind <= _ANSWER:
                if content.isspace() or not content or "\0" in content:
                    break
                if kind == _PROMPT:
                    before = len(entries), chars, seen, last
                    entries.append({"role": "user", "content": content})
                elif said == _PROMPT:
                    entries.append({"role": "assistant", "content": content})
                else:
                    break
                said = kind
            # Nobody sends what ends an answer, or the thoughts before it, once another prompt follows.
            elif said and (query is None or not _tells(query)):
                said = _STOP if kind == _STOP else said
            else:
                break
            chars += len(content)
            seen += 1
            last = sequence
            if chars >= limit:
                break
    whole, counted, length, end = before
    talk = Talk(entries=entries[:whole], chars=counted, last=end) if length else None
    return talk, length, seen


_as_time = datetime.fromisoformat


def _tells(query: str) -> bool:
    """Tell whether a query may say that its message was cut, or make it longer than its content."""
    return "cut" in query or "args" in query or "\\" in query
