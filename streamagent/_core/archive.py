"""The lines of an exported session, as they are written; `archive_reader` checks them when they are read again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from streamagent import exactjson
from streamagent.errors import ArchiveError
from streamagent.message import Message
from streamagent.records import CallRecord, Mark, SessionInfo

VERSION = 1
PIECE = 64 * 1024  # bytes of content in a line, in UTF-8: as much as a store holds in a piece
LINE_LIMIT = 16 * 1024 * 1024  # bytes: a line has all of a message's query, and of a call's arguments
DEPTH_LIMIT = 256  # levels of arrays and objects in a line
ATTEMPTS_LIMIT = 1000  # of a call: they are counted one by one
# What a tool wrote must not come back as the model's word, nor the model's as the user's.
_ROLES: dict[str, tuple[str, ...]] = {
    "tool_call": ("assistant",),
    "stop": ("assistant",),
    "reasoning": ("assistant",),
    "tool_result": ("tool",),
    "progress": ("tool",),
    "cancel": ("user",),
    "approval": ("tool", "user"),
}


def encode(line: Mapping[str, Any]) -> bytes:
    """Write one line, without what is `None` or `False`.

    Raises:
        ArchiveError: It is longer or deeper than one that can be read again.
    """
    data = exactjson.dumps({name: value for name, value in line.items() if value is not None and value is not False})
    try:
        check_size(data)
        check_depth(data, line)
    except ArchiveError as error:
        raise ArchiveError(f"message {line.get('id') or line.get('call')} cannot be exported: {error}") from error
    return data + b"\n"


def check_role(message: Message) -> None:
    """Refuse a message whose role is not one of its type's.

    Raises:
        ArchiveError: It is.
    """
    roles = _ROLES.get(message.type, (message.role,))
    if message.role not in roles:
        told = f"message {message.id}: a {message.type} has the role {' or '.join(roles)}, not {message.role!r}"
        raise ArchiveError(told)


def check_size(data: bytes) -> None:
    """Refuse a line that is too long.

    Raises:
        ArchiveError: It is.
    """
    if len(data) > LINE_LIMIT:
        raise ArchiveError(f"it has more than {LINE_LIMIT} bytes; a line has a query and 64 KiB of content")


def check_depth(data: bytes, value: Any) -> None:
    """Refuse a line that is nested too deep.

    Raises:
        ArchiveError: It is.
    """
    if data.count(b"[") + data.count(b"{") <= DEPTH_LIMIT:
        return  # of nearly all lines
    level: list[Any] = [value]
    for _ in range(DEPTH_LIMIT):
        level = [item for outer in level for item in _inner(outer)]
    if any(isinstance(item, Mapping | list | tuple) for item in level):
        raise ArchiveError(f"it is nested more than {DEPTH_LIMIT} levels deep")


def _inner(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def header_line(info: SessionInfo) -> dict[str, Any]:
    """Say what the first line says."""
    times = {"created_at": info.created_at.isoformat(), "modified_at": info.modified_at.isoformat()}
    return {"streamagent": VERSION, "session": info.id, **times, "messages": info.messages}


def message_line(message: Message, mark: Mark | None) -> dict[str, Any]:
    """Say what the first line of a message says: all but its session, which has the header.

    Raises:
        ArchiveError: It could not be read again.
    """
    check_role(message)
    return {
        "id": message.id,
        "sequence": message.sequence,
        "inbox": message.sequence is None,
        "prev": message.prev,
        "role": message.role,
        "type": message.type,
        "attempt": message.attempt,
        "created_at": message.created_at.isoformat(),
        "waits": mark is not None and mark.waits,
        "client_key": None if mark is None else mark.client_key,
        "query": message.query,
        "content": message.content,
        "more": message.more,
    }


def more_line(message: Message) -> dict[str, Any]:
    """Say what a further line of a message says."""
    return {"id": message.id, "content": message.content, "more": message.more}


def call_line(record: CallRecord) -> dict[str, Any]:
    """Say what is known of a call without a stored result."""
    line: dict[str, Any] = {"call": record.call, "attempts": min(record.attempts, ATTEMPTS_LIMIT)}
    if record.outcome is not None:
        told = {name: getattr(record.outcome, name) for name in ("id", "content", "query")}
        line["outcome"] = {name: value for name, value in told.items() if value is not None}
    return line


class Tally:
    """Counts lines, and what they are about, for the last one: the same for whoever writes and whoever reads."""

    def __init__(self) -> None:
        self.messages = self.inbox = self.calls = self.lines = 0
        self._digest = hashlib.sha256()

    def add(self, line: Mapping[str, Any], data: bytes) -> None:
        """Count a line and its bytes."""
        self.lines += 1
        self.messages += line.get("sequence") is not None
        self.inbox += line.get("inbox") is True
        self.calls += "call" in line
        self._digest.update(data)

    def end_line(self) -> dict[str, Any]:
        """Say what the last line says."""
        counts = {name: getattr(self, name) for name in ("messages", "inbox", "calls", "lines")}
        return {"end": True, **counts, "sha256": self._digest.hexdigest()}
