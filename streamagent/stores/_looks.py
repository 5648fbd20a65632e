"""How a store looks for those who follow. Each function is called on a connection's own thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator
from contextlib import closing
from functools import partial
from typing import Any

from streamagent.protocols import Excerpt

from ._codec import PIECE, drop_bytes, utf8_size
from ._dialect import BYTES, PAGE_END, Database
from ._excerpt import PAGE_ROWS, Found, make_excerpt
from ._pages import read_parts
from ._queries import END, snapshot
from ._select import read_lineage, read_pieces, select_messages
from ._talks import to_message

_HEAD = "SELECT head FROM leases WHERE tenant = ? AND session = ?"
_AT = "SELECT id FROM messages WHERE tenant = ? AND session = ? AND sequence = ?"
_BEHIND = select_messages(f"sequence > ?3 AND sequence <= ?4 {PAGE_END}")
_SIZES = f"""
    SELECT piece, {BYTES} FROM fragments
    WHERE tenant = ? AND session = ? AND message = ? ORDER BY piece
"""  # noqa: S608 - constants only
_VERSIONS = """
    SELECT leases.session, head, fence, modified_at
    FROM json_each(?) AS asked CROSS JOIN leases ON leases.session = asked.value WHERE tenant = ?
"""

Key = tuple[str, str, str]


Versions = Callable[[Database, str, Collection[str]], dict[str, Any] | None]


def read_versions(db: Database, tenant: str, sessions: Collection[str]) -> dict[str, Any]:
    """Give the versions of sessions."""
    return {session: version for session, *version in db.execute(_VERSIONS, (json.dumps([*sessions]), tenant))}


class FileVersions:
    """Asks whether anybody has written to the file, and then what became of the sessions that are followed.

    SQLite's data version differs when another connection has committed (https://sqlite.org/pragma.html). A session's
    own version is its lease: each commit of one writer has another time, and another writer another fence.
    """

    def __init__(self) -> None:
        self._data_version: int | None = None

    def look(self, db: Database, tenant: str, sessions: Collection[str]) -> dict[str, Any] | None:
        """Give the sessions' versions; `None` when nobody has written since the last look."""
        [data_version] = db.execute("PRAGMA data_version").fetchone()
        if data_version == self._data_version:
            return None
        found = read_versions(db, tenant, sessions)
        self._data_version = data_version
        return found


def read_excerpt(db: Database, tenant: str, session: str, place: tuple[int, int], hint: object) -> Excerpt:
    """Read a page behind a place, a sequence and an offset; see `Store.look`."""
    after, offset = place
    with snapshot(db), closing(_behind(db, tenant, session, after)) as rows:
        [head] = db.execute(_HEAD, (tenant, session)).fetchone() or (0,)
        owner = next(iter(read_lineage(db, tenant, session, after)), None)
        [before] = (owner and db.execute(_AT, (tenant, owner.session, after)).fetchone()) or (None,)
        return make_excerpt(head=head, before=before, rows=rows, offset=offset, hint=hint)


def _behind(db: Database, tenant: str, session: str, after: int) -> Generator[Found, None, None]:
    for part in read_parts(db, tenant, session, after, END):
        for values in db.execute(_BEHIND, (tenant, part.session, part.after, part.until, PAGE_ROWS)):
            message, size, source = to_message(session, values), values[8], values[12]
            if size and not values[11]:
                key = (tenant, source or part.session, message.id)
                yield Found(message, size, partial(_read_on, db, key, size))
            else:
                yield Found(message, utf8_size(message.content), partial(_cut, message.content))


def _cut(content: str, offset: int, hint: object) -> tuple[str, object]:
    return drop_bytes(content, offset), hint


def _read_on(db: Database, key: Key, size: int, offset: int, hint: object) -> tuple[str, object]:
    """Read pieces from an offset; a hint says which piece begins there."""
    if offset == size:
        return "", hint
    match hint:
        case (*known, int(piece)) if known == [*key, offset]:
            start = offset
        case _:
            piece, start = _piece_at(db, key, offset)
    last, text = read_pieces(db, key, after=piece - 1, limit=offset - start + min(PIECE, size - offset))
    text = drop_bytes(text, offset - start)
    return text, (*key, offset + utf8_size(text), last + 1)


def _piece_at(db: Database, key: Key, offset: int) -> tuple[int, int]:
    """Find the piece that an offset is in, and the bytes before it."""
    start = 0
    for piece, size in db.execute(_SIZES, key) if offset else ():
        if start + size > offset:
            return piece, start
        start += size
    return 0, 0
