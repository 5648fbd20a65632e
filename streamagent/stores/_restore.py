"""How a session is put back that was read from another store. No IO, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from streamagent.errors import ConflictError, MessageError
from streamagent.message import Message
from streamagent.records import CallRecord, Mark, Restored

from ._codec import decode_query, merge_queries
from ._ledger import Ledger
from ._pairs import answered_by
from ._row import UNREADABLE, Row

_WAITING = ("tool_call", "approval", UNREADABLE)  # types of rows that may wait for another one


def restore(ledger: Ledger, rows: Iterable[Restored], *, created_at: datetime, modified_at: datetime) -> None:
    """Fill a session that has nothing; see `Store.restore`."""
    if ledger.taken:
        raise ConflictError(f"session {ledger.session!r} exists; import it under another id, or delete that one")
    with ledger.undoing():
        for item in rows:
            if isinstance(item, CallRecord):
                _put_call(ledger, item)
            else:
                _put_row(ledger, *item)
            ledger.keep()
        ledger.date(created_at, modified_at)
    ledger.fence += 1 if ledger.fence else 0
    ledger.owner, ledger.crashes = None, 0


def _put_row(ledger: Ledger, message: Message, mark: Mark | None) -> None:
    """Put a message, or what follows of the one before."""
    part, row = Row.of(message), ledger.find(message.id)
    if row is None:
        row = part
        _open(ledger, row, message.sequence, mark)
    elif row.state == "open" and row.sequence == message.sequence:
        row.absorb(part, merge_queries(row.query, part.query))
    else:
        raise MessageError(f"message {message.id} came before; an id is unique in its session")
    waits = mark is not None and mark.waits
    if waits and row.type not in _WAITING:
        raise MessageError(f"message {message.id} waits for another one, which none of type {row.type!r:.80} does")
    if row.more:
        row.state = "open"
    elif row.sequence is None:
        row.state = "inbox"
    else:
        row.state = "unanswered" if waits else "closed"
    ledger.put(row)


def _open(ledger: Ledger, row: Row, sequence: int | None, mark: Mark | None) -> None:
    if sequence is not None:
        ledger.head += 1
        if sequence != ledger.head:
            raise MessageError(f"message {row.id} has the sequence {sequence}, where {ledger.head} comes next")
        row.sequence = sequence
    if mark is not None and mark.client_key is not None:
        if ledger.find_key(mark.client_key) is not None:
            raise MessageError(f"client key {mark.client_key!r:.80} came before; it is unique in its session")
        row.client_key = mark.client_key
    if row.type == "tool_result" and sequence is not None:
        _answer(ledger, row)


def _answer(ledger: Ledger, row: Row) -> None:
    """Note at a call where its result is; whether it waits for one is said by its own mark."""
    answered = answered_by(row.type, decode_query(row.query) or {})
    call = None if answered is None else ledger.find(answered)
    if call is not None and call.state != "open" and call.answered is None:
        call.answered = row.sequence
        ledger.put(call)


def _put_call(ledger: Ledger, record: CallRecord) -> None:
    row = ledger.find(record.call)
    if row is None or row.type != "tool_call" or row.state != "unanswered":
        raise MessageError(f"there is no call {record.call!r:.80} that waits for its result")
    for _ in range(record.attempts):
        ledger.start(record.call)
    if record.outcome is not None:
        ledger.keep_outcome(record.call, Row.of(record.outcome))
