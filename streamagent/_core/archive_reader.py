"""`Reader`: an exported session, line by line. Nothing in a file is trusted: all is checked before a store sees it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from streamagent import exactjson
from streamagent.errors import ArchiveError
from streamagent.message import Message, odd_field
from streamagent.records import CallRecord, Mark, Restored

from .archive import ATTEMPTS_LIMIT, PIECE, VERSION, Tally, check_depth, check_role, check_size

_HEADER = {"streamagent", "session", "created_at", "modified_at", "messages"}
_NAMED = {"id", "role", "type", "content", "created_at"}  # what the first line of a message always has
_MESSAGE = {*_NAMED, "sequence", "inbox", "prev", "query", "more", "attempt", "waits", "client_key"}
_MORE = {"id", "content", "more"}  # what its further lines may have
_CALL = {"call", "attempts", "outcome"}
_OUTCOME = {"id", "content", "query"}
_END = {"end", "messages", "inbox", "calls", "lines", "sha256"}
_FLAGS = ("more", "waits", "end")  # true, or left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the first line says: the session's id, its times, and how many messages it shows."""

    session: str
    created_at: datetime
    modified_at: datetime
    messages: int


class Reader:
    """Reads the lines of a file once, from the first to the last.

    Args:
        number: Of the line that was read last, from 1.
        header: What the first one said.
        latest: When the latest message was made.
    """

    def __init__(self) -> None:
        self.number = 0
        self.header: Header | None = None
        self.latest: datetime | None = None
        self._tally = Tally()
        self._over = False
        self._message: Message | None = None  # whose next line may follow
        self._mark: Mark | None = None
        self._answerless: dict[str, int] = {}  # the lines of calls that do not wait, until their results come
        self._unreadable = False

    def read(self, lines: Iterable[bytes]) -> Iterator[Restored]:
        """Give what the lines hold, in order, each checked when it is asked for.

        Raises:
            ArchiveError: A line is none of an exported session, or the last one is missing; the text has its number.
        """
        for data in lines:
            self.number += 1
            try:
                yield from self._read(data)
            except ArchiveError as error:
                raise ArchiveError(f"line {self.number}: {error}") from error
        if not self._over:
            raise ArchiveError(f"the file ends with line {self.number}, before its last one; get the whole file")

    def _read(self, data: bytes) -> list[Restored]:
        if self._over:
            raise ArchiveError("nothing stands behind the last line; leave it out")
        line = _parse(data)
        if self.header is not None and "end" in line:
            self._end(line)
            return []
        self._tally.add(line, data.rstrip(b"\r\n") + b"\n")
        if self.header is None:
            self.header = _header(line)
            return []
        if "call" in line:
            return [self._call(line)]
        before = self._message
        more = before is not None and before.more and line.get("id") == before.id
        self._message = found = _continued(before, line) if before and more else self._begun(line)
        if len(found.content.encode("utf-8", "surrogatepass")) > PIECE:
            raise ArchiveError(f"its content has more than {PIECE} bytes; a message has as many lines as it needs")
        return [(found, self._mark)]

    def _begun(self, line: dict[str, Any]) -> Message:
        self._check_whole()
        _check_fields(line, _MESSAGE, _NAMED)
        self._check_order(line)
        fields = {name: value for name, value in line.items() if name not in ("inbox", "waits", "client_key")}
        message = _message({**fields, "created_at": _time(line, "created_at")})
        check_role(message)
        self.latest = max(self.latest or message.created_at, message.created_at)
        key = _text(line, "client_key") if "client_key" in line else None
        waits = line.get("waits", False)
        self._pair(message, waits=waits)
        self._mark = Mark(id=message.id, waits=waits, client_key=key) if waits or key is not None else None
        return message

    def _pair(self, message: Message, *, waits: bool) -> None:
        """Note a call that should have a result, or take the result for it."""
        query = message.query or {}
        self._unreadable |= message.type == "unreadable"
        if message.type == "tool_result" and message.sequence is not None and isinstance(query.get("call"), str):
            self._answerless.pop(query["call"], None)
        elif message.type == "tool_call" and not waits and "cut" not in query:
            self._answerless[message.id] = self.number

    def _check_order(self, line: dict[str, Any]) -> None:
        """Look that sequences are dense, and that what waits in the inbox stands behind them."""
        if self._tally.calls:
            raise ArchiveError("a message stands before what is known of calls; keep the order")
        if "inbox" in line and (line["inbox"] is not True or "sequence" in line):
            raise ArchiveError("its field 'inbox' is true, and then it has no sequence, or left out")
        if "inbox" not in line and (self._tally.inbox or _number(line, "sequence") != self._tally.messages):
            raise ArchiveError(f"the message with the sequence {self._tally.messages} comes here; keep the order")

    def _check_whole(self) -> None:
        last = self._message
        if last is None or not last.more:
            return
        if last.sequence is None:
            raise ArchiveError(f"message {last.id} waits in the inbox and is not whole; its other lines are missing")
        self._answerless.pop(last.id, None)  # it is not complete

    def _call(self, line: dict[str, Any]) -> CallRecord:
        self._check_whole()
        self._message = None
        _check_fields(line, _CALL, _CALL - {"outcome"})
        attempts = _number(line, "attempts")
        if attempts > ATTEMPTS_LIMIT:
            raise ArchiveError(f"{attempts} attempts are more than a call has; {ATTEMPTS_LIMIT} at most")
        return CallRecord(call=_text(line, "call"), attempts=attempts, outcome=_outcome(line))

    def _end(self, line: dict[str, Any]) -> None:
        self._check_whole()
        _check_fields(line, _END, _END)
        expected = self._tally.end_line()
        if odd := [name for name in expected if line[name] != expected[name]]:
            raise ArchiveError(f"what stands before is not what was exported ({', '.join(odd)}); get the file again")
        if self._answerless and not self._unreadable:  # of which one may be a result
            number = min(self._answerless.values())
            raise ArchiveError(f"the call of line {number} neither waits nor has a result; get the file again")
        if self.header is not None and self._tally.messages != self.header.messages:
            raise ArchiveError(f"there are {self._tally.messages} messages, not the header's {self.header.messages}")
        self._over = True


def _header(line: dict[str, Any]) -> Header:
    if "streamagent" not in line:
        raise ArchiveError("this is no exported session: its first line says nothing of streamagent")
    if type(line["streamagent"]) is not int or line["streamagent"] != VERSION:  # True and 1.0 are equal to it
        raise ArchiveError(f"version {line['streamagent']!r:.20} is not known, only {VERSION}; update this package")
    _check_fields(line, _HEADER, _HEADER)
    created_at, modified_at = _time(line, "created_at"), _time(line, "modified_at")
    messages = _number(line, "messages", least=0)
    return Header(session=_text(line, "session"), created_at=created_at, modified_at=modified_at, messages=messages)


def _continued(before: Message, line: dict[str, Any]) -> Message:
    _check_fields(line, _MORE, _MORE - {"more"})
    return replace(before, query=None, content=_text(line, "content"), more=line.get("more", False))


def _outcome(line: dict[str, Any]) -> Message | None:
    if "outcome" not in line:
        return None
    if not isinstance(told := line["outcome"], dict):
        raise ArchiveError("'outcome' is an object")
    _check_fields(told, _OUTCOME, _OUTCOME - {"query"})
    return _message({**told, "role": "tool", "type": "tool_result"})


def _message(fields: dict[str, Any]) -> Message:
    message = Message(**fields)
    if odd := odd_field(message):
        raise ArchiveError(f"its field {odd!r} cannot be {getattr(message, odd)!r:.80}")
    return message


def _parse(data: bytes) -> dict[str, Any]:
    check_size(data.rstrip(b"\r\n"))
    try:
        line = exactjson.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"it is not JSON ({error}); get the file again") from error
    if not isinstance(line, dict):
        raise ArchiveError("it is not a JSON object; get the file again")
    check_depth(data, line)
    if not _is_ours(line, data):
        json.loads(data, object_pairs_hook=_check_keys)
    return line


def _is_ours(line: dict[str, Any], data: bytes) -> bool:
    """Tell whether a line is just what `encode` writes, which has no key twice; to look at each key takes longer."""
    try:
        return exactjson.dumps(line) == data.rstrip(b"\r\n")
    except ValueError:
        return False


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ArchiveError(f"it has the key {twice!r:.80} twice; get the file again")


def _check_fields(line: dict[str, Any], known: Collection[str], needed: Collection[str]) -> None:
    if strange := line.keys() - known:
        raise ArchiveError(f"it has a field {min(strange)!r:.80}, which version {VERSION} does not; leave it out")
    for name in sorted(needed):
        if name not in line:
            raise ArchiveError(f"it has no field {name!r}; get the file again")
    for name, value in line.items():
        if value is None or (name in _FLAGS and value is not True):
            raise ArchiveError(f"its field {name!r} cannot be {value!r:.80}; leave it out")


def _time(line: dict[str, Any], name: str) -> datetime:
    try:
        moment = datetime.fromisoformat(_text(line, name))
        return moment.astimezone(timezone.utc) if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError) as error:
        raise ArchiveError(f"its field {name!r} is a time in ISO 8601, not {line[name]!r:.80}") from error


def _text(line: dict[str, Any], name: str) -> str:
    if not isinstance(value := line[name], str):
        raise ArchiveError(f"its field {name!r} is text, not {value!r:.80}")
    return value


def _number(line: dict[str, Any], name: str, *, least: int = 1) -> int:
    value = line.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ArchiveError(f"its field {name!r} is a number from {least}, not {value!r:.80}")
    return value
