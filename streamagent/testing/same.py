"""`same_rows`: a session that was cut and gone on with has the rows that it would have without (I12)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from itertools import groupby

from streamagent.message import Message

from .evidence import cut_of, fact


def same_rows(cut: Sequence[Message], uncut: Sequence[Message]) -> None:
    """Compare the rows of a session that was cut and gone on with to those of one that was not, with the same answers.

    Left out are attempts that were superseded: what the model said in a turn that was taken anew, up to the `stop` with
    `cut: resumed`, and the results with `cut: resumed` of the calls in it. Of the others neither the number of the
    attempt nor the time counts, and of ids and sequences only whether they name the same row. Tools may end in any
    order, so results and requests that stand together are compared in the order of their calls.

    Args:
        cut: The rows of the one, whole.
        uncut: Those of the other.

    Raises:
        AssertionError: They are others; the text has the differences.
    """
    after, before = [*_told(cut)], [*_told(uncut)]
    if after != before:
        raise AssertionError("\n".join(unified_diff(before, after, "uncut", "cut", n=2, lineterm="")))


def without_attempts(rows: Sequence[Message]) -> list[Message]:
    """Leave out what a later attempt supersedes."""
    kept: list[Message] = []
    for row in rows:
        if cut_of(row) != "resumed":
            kept.append(row)
        elif row.type == "stop":
            while kept and kept[-1].role == "assistant" and kept[-1].type != "stop":
                kept.pop()
    return kept


def _told(rows: Sequence[Message]) -> Iterator[str]:
    """Tell each row in one line, with numbers for ids and sequences."""
    rows = [*_in_call_order(without_attempts(rows))]
    numbers = {row.id: f"#{number}" for number, row in enumerate(rows, 1)}
    for row in rows:
        told = json.dumps([row.role, row.type, row.content, row.more, _counted(row, rows)], sort_keys=True, default=str)
        for id_, number in numbers.items():
            told = told.replace(id_, number)
        yield told


def _in_call_order(rows: Sequence[Message]) -> Iterator[Message]:
    calls = {row.id: number for number, row in enumerate(rows) if row.type == "tool_call"}
    for role, group in groupby(rows, key=lambda row: row.role):
        yield from sorted(group, key=lambda row: calls.get(str(fact(row, "call")), -1) if role == "tool" else 0)


def _counted(row: Message, rows: Sequence[Message]) -> object:
    """Return a row's query; a pause names a sequence, for which stands how many rows there are up to it."""
    run = fact(row, "run")
    if not isinstance(run, dict) or "since" not in run:
        return row.query
    since = sum((other.sequence or 0) <= run["since"] for other in rows)
    return {**(row.query or {}), "run": {**run, "since": since}}
