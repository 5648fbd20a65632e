"""From a provider's bytes to what the assembler takes; nearly all events are a piece of text, and take a short way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from streamagent.errors import ModelError

from .delta import Delta, read_chunk
from .sse import DONE, SSEDecoder, parse_event
from .think import Piece, Pieces

Said = Piece | Pieces | Delta

_TOGETHER: Final = 16  # events that are read at once

_ABSENT: Final = msgspec.Raw(b"null")


class _Text(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The `delta` of a chunk that says text or reasoning, and nothing else."""

    content: str | None = None
    reasoning_content: str | None = None
    role: msgspec.Raw = _ABSENT
    refusal: None = None
    tool_calls: None = None
    function_call: None = None


class _Choice(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    delta: _Text
    index: int = 0
    finish_reason: None = None
    logprobs: msgspec.Raw = _ABSENT
    content_filter_results: msgspec.Raw = _ABSENT


class _Chunk(msgspec.Struct, gc=False):
    choices: tuple[_Choice]
    usage: None = None
    error: None = None


_decoder: Final = msgspec.json.Decoder(_Chunk)


def read_event(data: bytes) -> Said | None:
    """Read the data of an event.

    Args:
        data: What `SSEDecoder` yielded, but not `DONE`.

    Returns:
        The piece of text or reasoning that it is, when it is nothing else; else all that it says; `None` when it means
        nothing.

    Raises:
        ModelError: It is damaged, or something in it has the wrong type (kind `protocol`).
    """
    return read_piece(data) or _read_all(data)


def read_piece(data: bytes) -> Piece | None:
    """Read the data of an event that is a piece of text or reasoning and nothing else; `None` for any other."""
    try:
        said = _decoder.decode(data).choices[0].delta
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if said.reasoning_content is None:
        return None if said.content is None else ("text", said.content)
    return None if said.content else ("reasoning", said.reasoning_content)


def _read_pieces(events: Sequence[bytes]) -> Pieces | None:
    """Read the data of events that are pieces of one kind and nothing else; `None` for any others."""
    lines = b"\n".join(events)
    # No value of JSON goes on like this, so none reaches over the border of two events.
    if lines.count(b"}\n{") < len(events) - 1 or not (lines.startswith(b"{") and lines.endswith(b"}")):
        return None
    try:
        deltas = [chunk.choices[0].delta for chunk in _decoder.decode_lines(lines)]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    texts = [said.content for said in deltas if said.reasoning_content is None and said.content is not None]
    if len(texts) == len(deltas) == len(events):  # of two objects in one event none is to be lost
        return "text", texts
    thoughts = [said.reasoning_content for said in deltas if said.reasoning_content is not None and not said.content]
    return ("reasoning", thoughts) if len(thoughts) == len(deltas) == len(events) else None


def _read_all(data: bytes) -> Delta | None:
    chunk = parse_event(data)
    return None if chunk is None else read_chunk(chunk)


class EventReader:
    """The bytes of one answer, as the network gives them.

    `done` tells that `[DONE]` has come, behind which nothing counts; `error`, what the answer failed with behind that
    which was returned.

    Args:
        read: Reads the data of an event; raises `ModelError` alone.
        plain: The events are OpenAI's: pieces of text or reasoning are read together, as `read_piece` reads each.
    """

    __slots__ = ("_decoder", "_plain", "_read_event", "done", "error")

    def __init__(self, read: Callable[[bytes], Said | None] = read_event, *, plain: bool = True) -> None:
        self._decoder = SSEDecoder()
        self._read_event = read
        self._plain = plain
        self.done = False
        self.error: ModelError | None = None

    def feed(self, data: bytes) -> list[Said]:
        """Take one network read; return what its events say."""
        return self._read(self._decoder.feed(data))

    def end(self) -> list[Said]:
        """Take the end of the connection; return what was held back."""
        return self._read(self._decoder.end())

    def _read(self, events: Iterable[bytes]) -> list[Said]:
        said: list[Said] = []
        try:
            if self._plain and isinstance(events, list):
                for start in range(0, len(events), _TOGETHER):
                    group = events[start : start + _TOGETHER]
                    if len(group) == 1 or self.done or (pieces := _read_pieces(group)) is None:
                        self._read_each(group, said)
                    else:
                        said.append(pieces)
            else:
                self._read_each(events, said)
        except ModelError as error:
            self.error = error
        return said

    def _read_each(self, events: Iterable[bytes], said: list[Said]) -> None:
        for data in events:
            if self.done or data == DONE:
                self.done = True
                break
            if (item := self._read_event(data)) is not None:
                said.append(item)
