"""How the messages of a session are read, page by page. Each function is called on a connection's own thread."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

from streamagent.message import Message
from streamagent.talk import Item

from ._codec import PIECE, utf8_size
from ._dialect import PAGE_BYTES, PAGE_END, Database
from ._forks import Part
from ._queries import PAGE_ROWS, snapshot
from ._select import read_lineage, read_pieces, select_messages
from ._talks import MIXED_COLUMNS, TALK_COLUMNS, Values, to_items, to_messages, to_talk

_NEXT = f"sequence > ?3 AND sequence <= ?4 {PAGE_END}"
_MESSAGES = select_messages(_NEXT)
_MIXED = select_messages(_NEXT, MIXED_COLUMNS)
_TALK = select_messages(_NEXT, TALK_COLUMNS)


@dataclass(slots=True)
class Reading:
    """A session that is being read.

    Args:
        session: The session.
        after: Sequence after which it is read.
        until: Last sequence that is read.
        talks: Whole exchanges of text may be given as a `Talk`.
        fluent: It has been little else so far, so that the next page is looked at as that first.
        parts: Who keeps what is left of it; `None` at its beginning.
    """

    session: str
    after: int
    until: int
    talks: bool
    fluent: bool = True
    parts: list[Part] | None = None


@dataclass(slots=True)
class Page:
    """Consecutive messages of a session; the last one may be the first fragment of one whose content is in pieces.

    Args:
        items: The messages.
        after: Sequence of the last one.
        full: There may be more behind it.
        source: Session that has the pieces of the last message.
        piece: Number of the last piece that was read of the last message.
        left: Bytes of the last message that were not read.
        still_open: The last message is not closed.
    """

    items: list[Item] = field(default_factory=list)
    after: int = 0
    full: bool = False
    source: str = ""
    piece: int = -1
    left: int = 0
    still_open: bool = False

    @property
    def last(self) -> Message:
        """The last message, of which more is to come."""
        return cast("Message", self.items[-1])

    def next_fragment(self, piece: int, content: str) -> Message:
        """Give the next pieces of the last message."""
        self.piece = piece
        self.left -= utf8_size(content)
        return replace(self.last, content=content, more=self.still_open or self.left > 0)


def read_parts(db: Database, tenant: str, session: str, after: int, until: int) -> list[Part]:
    """Say who keeps the rows of a session, from the first to the last."""
    parts = [part for part in read_lineage(db, tenant, session, until) if part.until > after]
    for part in parts:
        part.after = max(part.after, after)
    return parts[::-1]


def read_page(db: Database, tenant: str, session: str, reading: Reading) -> Page:
    """Read the messages of one page, up to the first whose content is in pieces.

    Args:
        db: The connection.
        tenant: Whose session it is.
        session: The session.
        reading: What is left of it; it learns how that is to be read.
    """
    with snapshot(db):
        if reading.parts is None:
            reading.parts = read_parts(db, tenant, session, reading.after, reading.until)
        return _page_of(db, tenant, reading, reading.parts[0]) if reading.parts else Page()


def _page_of(db: Database, tenant: str, reading: Reading, part: Part) -> Page:
    items: list[Item] = []
    after = part.after
    if reading.talks and reading.fluent:
        talk, _, seen = to_talk(db.execute(_TALK, (tenant, part.session, after, part.until, PAGE_ROWS)), PAGE_BYTES)
        if talk is not None:
            items.append(talk)
            after = talk.last
            if seen == PAGE_ROWS or talk.chars >= PAGE_BYTES // 2:
                return Page(items, after=after, full=True)
    rows, size = _rows_of(db, _MIXED if reading.talks else _MESSAGES, (tenant, part.session, after, part.until))
    if not rows:
        return Page(items, after=after)
    made = to_items(reading.session, rows) if reading.talks else to_messages(reading.session, rows)
    reading.fluent = len(made) <= len(rows) // 2
    _, sequence, _, _, _, state, _, _, length, _, _, content, source, *_ = rows[-1]
    in_pieces = bool(length and not content)
    full = in_pieces or size >= PAGE_BYTES or len(rows) == PAGE_ROWS
    page = Page([*items, *made], after=sequence, full=full)
    if in_pieces:
        page.left, page.still_open, page.source = length, state == "open", source or part.session
        # In the same snapshot as the row: closing a small message moves its pieces into the row.
        page.items[-1] = page.next_fragment(*read_next(db, tenant, page))
    return page


def _rows_of(db: Database, query: str, where: tuple[str, str, int, int]) -> tuple[list[Values], int]:
    """Read the rows of one page, up to the first whose content is in pieces; return how many bytes they have, too."""
    rows: list[Values] = []
    size = 0
    for values in db.execute(query, (*where, PAGE_ROWS)):
        rows.append(values)
        length = values[8]
        size += length
        if size >= PAGE_BYTES or (length and not values[11]):
            break
    return rows, size


def read_next(db: Database, tenant: str, page: Page) -> tuple[int, str]:
    """Read what follows of a page's last message, 64 KiB at most."""
    limit = min(PIECE, page.left)
    return read_pieces(db, (tenant, page.source, page.last.id), after=page.piece, limit=limit)
