"""`Message`, the one item type of every stream, and the arithmetic of its fragments.

A message travels as one or more *fragments*: records with the same `id`, all but the last with `more=True`, whose
contents concatenate to the message's content. Borders between fragments carry no meaning.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from typing import Any, Literal

from . import exactjson
from .errors import MessageError
from .ids import new_id as new_id  # noqa: PLC0414 - told from here, too
from .ids import utc_now as utc_now  # noqa: PLC0414

Role = Literal["system", "user", "assistant", "tool"]
ROLES = frozenset({"system", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Message:
    """A message, or one fragment of it.

    Args:
        id: Time-ordered id (UUIDv7), shared by all fragments of one message.
        session: The session it belongs to; `None` until the session takes it.
        sequence: Dense 1..n per session, given by the store when the message opens; `None` before.
        prev: Id of the parent message, on the first message of a fork.
        role: `system`, `user`, `assistant` or `tool`.
        type: `text`, `reasoning`, `tool_call`, `tool_result`, `image`, `file`, `data`, `approval`, `cancel`,
            `progress`, `stop`; a stage passes on types that it does not know.
        content: Text of this fragment; of the whole message when it came whole. Of a `tool_call`: the arguments as
            the model wrote them.
        query: Structured part: `{tool, id, args}` of a call (and `invalid` when it must not run),
            `{tool, id, call, is_error}` of a result (`call` is the call's message id), `{reason, usage, model, error}`
            of a stop, with `again` when the run takes its turn again. Opaque provider data is under `provider`. A
            message that was cut has `cut`, the reason; one that a sub-agent said, on its way through the run that asked
            it, has `path`.
        more: Further fragments of this message follow.
        attempt: Which try of the model produced it, from 1; a later attempt supersedes an earlier one.
        created_at: When it was made, UTC.
    """

    id: str
    session: str | None
    sequence: int | None
    prev: str | None
    role: Role
    type: str
    content: str
    query: Mapping[str, Any] | None
    more: bool
    attempt: int
    created_at: datetime

    def __init__(  # noqa: PLR0913 - the fields
        self,
        *,
        id: str | None = None,  # noqa: A002 - the field's name
        session: str | None = None,
        sequence: int | None = None,
        prev: str | None = None,
        role: Role = "assistant",
        type: str = "text",  # noqa: A002 - the field's name
        content: str = "",
        query: Mapping[str, Any] | None = None,
        more: bool = False,
        attempt: int = 1,
        created_at: datetime | None = None,
    ) -> None:
        # Straight into the slots, in half the time: what a frozen dataclass generates looks each field up by its name.
        _put_id(self, new_id() if id is None else id)
        _put_session(self, session)
        _put_sequence(self, sequence)
        _put_prev(self, prev)
        _put_role(self, role)
        _put_type(self, type)
        _put_content(self, content)
        _put_query(self, query)
        _put_more(self, more)
        _put_attempt(self, attempt)
        _put_created_at(self, utc_now() if created_at is None else created_at)

    @classmethod
    def user(cls, content: str) -> Message:
        """Make a prompt."""
        return cls(role="user", content=content)

    @classmethod
    def system(cls, content: str) -> Message:
        """Make an instruction for the model."""
        return cls(role="system", content=content)

    @classmethod
    def stop(cls, reason: str, **query: Any) -> Message:
        """Make the message that closes a model turn.

        Args:
            reason: `stop`, `tool_calls`, `length`, `content_filter`, `aborted`, `error`, or the limit that ended it.
            query: `usage`, `model`, `error` and what else says why; `None` values are left out.
        """
        present = {key: value for key, value in query.items() if value is not None}
        return cls(type="stop", query={"reason": reason, **present})

    @property
    def is_final(self) -> bool:
        """It is the last word of a run: a `stop`, and not one after which results, another turn or attempt follow."""
        if self.type != "stop":
            return False
        query = self.query or {}
        return query.get("reason") != "tool_calls" and query.get("cut") != "resumed" and "again" not in query

    @property
    def path(self) -> Sequence[str]:
        """Ids of the calls that a sub-agent's message came through, outermost first; empty for all others."""
        if self.query is None:  # of nearly all fragments
            return ()
        path = self.query.get("path")
        return path if isinstance(path, list) else ()

    def to_json(self) -> bytes:
        """Encode as one line of JSON; fields at their defaults of `None`, `False` and empty are left out.

        Raises:
            MessageError: The query holds something that JSON cannot.
        """
        try:
            return exactjson.dumps(_plain(self))
        except ValueError as error:
            raise MessageError(f"message {self.id} cannot be JSON: {error}") from error

    @classmethod
    def from_json(cls, data: bytes | str) -> Message:
        """Decode what `to_json` wrote, and the older CAP form of a tool result.

        Raises:
            MessageError: Not JSON, not an object, or a field of the wrong type; the text names the field.
        """
        try:
            value = exactjson.loads(data)
        except ValueError as error:
            raise MessageError(f"not a message: {error}") from error
        return cls.from_dict(value)

    @classmethod
    def from_dict(cls, value: Any) -> Message:
        """Build a message from plain data, as `from_json` does.

        Raises:
            MessageError: As `from_json`.
        """
        if not isinstance(value, dict):
            raise MessageError(f"a message is a JSON object, not {type(value).__name__}")
        known = {name: value[name] for name in _FIELDS if value.get(name) is not None}
        for name, item in known.items():
            if name != "created_at" and not _fits(name, item):
                raise MessageError(f"message field {name!r} cannot be {item!r:.80}")
        if "created_at" in known:
            known["created_at"] = _parse_time(known["created_at"])
        return cls(**_modern(known))


_FIELDS = tuple(item.name for item in fields(Message))
_put_id, _put_session, _put_sequence, _put_prev, _put_role, _put_type, *_puts = (
    getattr(Message, name).__set__ for name in _FIELDS
)
_put_content, _put_query, _put_more, _put_attempt, _put_created_at = _puts
_OPTIONAL = frozenset({"session", "sequence", "prev", "query"})
_TYPES: dict[str, type | tuple[type, ...]] = {"sequence": int, "attempt": int, "more": bool, "query": Mapping}


def _fits(name: str, item: Any) -> bool:
    if isinstance(item, bool) and name != "more":
        return False
    if name == "role":
        return isinstance(item, str) and item in ROLES
    return isinstance(item, _TYPES.get(name, str))


def odd_field(message: Message) -> str | None:
    """Name a field whose value is of a wrong type, as a program may give it; `None` when all are right."""
    for name in _FIELDS:
        item = getattr(message, name)
        fits = isinstance(item, datetime) if name == "created_at" else _fits(name, item)
        if not fits and not (item is None and name in _OPTIONAL):
            return name
    return None


def _parse_time(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    try:
        parsed = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise MessageError(f"message field 'created_at' is an ISO 8601 time, not {value!r:.80}") from error
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)


def _modern(known: dict[str, Any]) -> dict[str, Any]:
    """Accept the CAP text's form of a result: role `assistant`, type `tool`, query `{tool, ID}`."""
    if known.get("type") == "tool" and known.get("role", "assistant") == "assistant":
        query = dict(known.get("query", {}))
        if "ID" in query:
            query["id"] = query.pop("ID")
        return {**known, "role": "tool", "type": "tool_result", "query": query}
    return known


def _plain(message: Message) -> dict[str, Any]:
    plain = {name: getattr(message, name) for name in _FIELDS}
    plain["created_at"] = message.created_at.isoformat()
    return {name: value for name, value in plain.items() if value not in (None, False, "")}


_SURROGATES = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Make text storable everywhere: half surrogates become U+FFFD, NUL is removed (PostgreSQL refuses it)."""
    if text.isascii():
        return text.replace("\0", "") if "\0" in text else text
    if _SURROGATES.search(text):
        # Two halves that meet are one character; what is left alone is replaced.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\0", "")


def merge(first: Message, second: Message) -> Message:
    """Join two adjacent fragments of one message.

    Raises:
        MessageError: They belong to different messages, or `first` was the last fragment.
    """
    if first.id != second.id:
        raise MessageError(f"fragments of different messages: {first.id} and {second.id}")
    if not first.more:
        raise MessageError(f"message {first.id} was closed already; nothing can follow its last fragment")
    query = first.query if second.query is None else {**(first.query or {}), **second.query}
    content = first.content + second.content
    sequence = second.sequence if first.sequence is None else first.sequence
    return replace(first, content=content, query=query, more=second.more, sequence=sequence)


def split(message: Message, size: int) -> Iterator[Message]:
    """Cut a message into fragments of at most `size` characters; the last one carries the query.

    Raises:
        ValueError: `size` is below 1.
    """
    if size < 1:
        raise ValueError(f"size is at least 1 character, not {size}")
    start = 0
    while len(message.content) - start > size:
        yield replace(message, content=message.content[start : start + size], query=None, more=True)
        start += size
    yield replace(message, content=message.content[start:])


def fold(fragments: Iterable[Message]) -> list[Message]:
    """Join all fragments, also interleaved ones, to messages in the order in which they opened."""
    parts: dict[str, list[Message]] = {}
    for fragment in fragments:
        group = parts.setdefault(fragment.id, [])
        if group and not group[-1].more:
            raise MessageError(f"message {fragment.id} was closed already; nothing can follow its last fragment")
        group.append(fragment)
    return [_join(group) for group in parts.values()]


async def afold(fragments: AsyncIterator[Message]) -> list[Message]:
    """Collect a stream and `fold` it."""
    return fold([fragment async for fragment in fragments])


async def each(messages: Iterable[Message]) -> AsyncGenerator[Message, None]:
    """Give messages one by one, as a stream."""
    for message in messages:
        yield message


def _join(group: list[Message]) -> Message:
    """Join one message's fragments in linear time."""
    first, last = group[0], group[-1]
    if first is last:
        return first
    query: dict[str, Any] | None = None
    for fragment in group:
        if fragment.query is not None:
            query = {**(query or {}), **fragment.query}
    sequence = next((part.sequence for part in group if part.sequence is not None), None)
    content = "".join(part.content for part in group)
    return replace(first, content=content, query=query, more=last.more, sequence=sequence)
