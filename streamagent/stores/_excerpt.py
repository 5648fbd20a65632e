"""What a look at a session gives, once for all stores: from rows as they are found to a page of fragments. No IO."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from streamagent.message import Message
from streamagent.protocols import Excerpt

from ._codec import utf8_size

PAGE_ROWS = 256
PAGE_BYTES = 256 * 1024  # a page holds at most these bytes and one more row, as those of `read`


@dataclass(frozen=True, slots=True)
class Found:
    """A row behind the place, in order of sequence.

    Args:
        message: It, with or without its content.
        size: Bytes of its content.
        read: Gives what is behind an offset, at most 64 KiB, and a hint for what follows that.
    """

    message: Message
    size: int
    read: Callable[[int, object], tuple[str, object]]


def make_excerpt(*, head: int, before: str | None, rows: Iterable[Found], offset: int, hint: object) -> Excerpt:
    """Put a page together.

    Args:
        head: The session's last sequence.
        before: Id of the last message before the place.
        rows: What is behind it; read as far as the page goes.
        offset: Bytes of the first row that are before the place.
        hint: What the look before gave.
    """
    messages: list[Message] = []
    size = taken = left = 0
    for number, row in enumerate(rows):
        start = 0 if number else offset
        size = size if number else row.size
        before = row.message.id if start else before
        if start > row.size:
            break
        text, hint = row.read(start, hint)
        taken += utf8_size(text)
        left = row.size - start - utf8_size(text) if text else 0  # nothing comes of what others have written wrongly
        messages.append(replace(row.message, content=text, more=row.message.more or left > 0))
        if messages[-1].more or taken >= PAGE_BYTES or len(messages) == PAGE_ROWS:
            break
    last = messages[-1] if messages else None
    more = last is not None and (left > 0 or (not last.more and (last.sequence or 0) < head))
    return Excerpt(head=head, id=before, size=size, messages=messages, more=more, hint=hint)
