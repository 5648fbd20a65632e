"""`check_session`: read a stored session and check all invariants that its rows and a test's logs can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamagent._core.profiles import profile_for
from streamagent._core.request import build_request
from streamagent.message import Message, afold, fold
from streamagent.protocols import Store

from .evidence import Evidence
from .files import damage_of
from .invariants import check
from .lint import RULES

CURSORS = 16  # rows after which a session is read once more: enough for every row of a test's


async def check_session(
    store: Store, session: str = "s", *, others: Sequence[Store] = (), **logged: Any
) -> list[Message]:
    """Check a session that is at rest.

    From the rows alone come I1 (pairing), I2 (sequence), I4 (no provider refuses the request), I9 (one last word),
    I10 (rows are read in pieces), I13 (reading on from any row), I15 (usage), I16 (honesty) and, of an SQLite file,
    I20 (it is whole). The others need what a test has logged.

    Args:
        store: Where it lives; open.
        session: Its id.
        others: Stores of other tenants in the same place, open; for I14.
        logged: What else is known, as in `Evidence`: `effects` for I5 and `gated` for I8, `shown` for I3, `writes` for
            I7, `accepted` for I6, `cancels` for I18, `secrets` and `logs` for I17, `max_turns` and
            `max_calls` for I19; `at_rest=False` when a run is under way.

    Returns:
        The rows.

    Raises:
        AssertionError: Some do not hold; the text names each, says what is wrong, and shows the rows.
    """
    fragments = [fragment async for fragment in store.read(session)]
    rows = fold(fragments)
    step = max(1, len(rows) // CURSORS)
    found: dict[str, Any] = {
        "rows": rows,
        "inbox": await store.inbox(session),
        "requests": provider_requests([*rows, Message.user("And?")]),
        "reread": {after: await afold(store.read(session, after=after)) for after in range(1, len(rows), step)},
        "usage": await store.usage(session),
        "widest": max((len(fragment.content.encode()) for fragment in fragments), default=0),
        "foreign": [row for other in others for row in await _found(other, session)],
        "damage": damage_of(getattr(store, "path", None)),
        "inherited": await _inherited(store, session, rows),
    }
    check(Evidence(**{**found, **logged}))
    return rows


def provider_requests(context: Sequence[Message]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Build what each kind of provider would be sent."""
    return {name: build_request(context, profile_for(name)) for name in RULES}


async def _found(other: Store, session: str) -> list[Message]:
    return [*await afold(other.read(session)), *await other.inbox(session)]


async def _inherited(store: Store, session: str, rows: Sequence[Message]) -> int:
    """Tell how many rows a session shares with the one that it was forked from."""
    if (await store.unfinished(session)).forked:
        return len(rows)
    ids = {row.id for row in rows}
    return max(((row.sequence or 1) - 1 for row in rows if row.prev in ids), default=0)
