"""The text and reasoning messages of one answer, written as fragments."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from streamagent.message import Message, clean_text, new_id, utc_now

from .think import Kind, ThinkSplitter


class Cleaner:
    """`clean_text` for text that comes in pieces: halves of a character that meet over a border are joined."""

    __slots__ = ("_half",)

    def __init__(self) -> None:
        self._half = ""

    def leaves(self, piece: str) -> bool:
        """Tell whether a piece passes as it is."""
        return not self._half and piece.isascii() and "\0" not in piece

    def feed(self, piece: str) -> str:
        """Return what is certain now."""
        if piece.isascii() and not self._half:
            return clean_text(piece)
        piece = self._half + piece
        self._half = piece[-1] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        return clean_text(piece.removesuffix(self._half))

    def end(self) -> str:
        """Return U+FFFD for a half that stayed alone."""
        half, self._half = self._half, ""
        return clean_text(half)


class Opaque:
    """What a provider wants back byte for byte, collected until its message closes (quirks Q78 to Q83)."""

    __slots__ = ("_data", "_unsigned")

    def __init__(self) -> None:
        self._data: dict[str, Any] = {}
        self._unsigned: list[str] = []

    def add(self, key: str, value: Any) -> None:
        """Keep a value; lists of one name are joined, of other values the last holds."""
        kept = self._data.setdefault(key, [])
        if isinstance(value, list) and isinstance(kept, list):
            kept.extend(value)
        else:
            self._data[key] = value

    def add_block(self, block: Mapping[str, Any]) -> str:
        """Keep a thinking block once it is signed.

        A signature comes alone, or with all the thinking that was streamed before it, or with thinking of its own.

        Returns:
            The thinking that is new with it.
        """
        thinking: str = block.get("thinking") or ""
        redacted = block.get("type") == "redacted_thinking"
        if not (redacted or block.get("signature")):
            self._unsigned.append(thinking)
            return thinking
        streamed = "" if redacted else "".join(self._unsigned)
        self._unsigned.clear()
        if streamed and not thinking:
            block = {**block, "thinking": streamed}
        self._data.setdefault("thinking_blocks", []).append(block)
        return "" if thinking == streamed else thinking

    def take(self) -> dict[str, Any]:
        """Return what was collected, and begin anew."""
        data, self._data = self._data, {}
        return data


class Blocks:
    """Write pieces as fragments: a message for each run of one kind, opened by its first character.

    Args:
        out: Takes the fragments.
        attempt: Which try of the model this is.
        splitter: Takes reasoning out of the text, or `None`.
    """

    __slots__ = (
        "_attempt",
        "_cleaner",
        "_created",
        "_cut",
        "_id",
        "_kind",
        "_out",
        "_run",
        "_source",
        "_splitter",
        "opaque",
    )

    def __init__(self, out: list[Message], *, attempt: int, splitter: ThinkSplitter | None = None) -> None:
        self._out = out
        self._attempt = attempt
        self._splitter = splitter
        self._cleaner = Cleaner()
        self._source: Kind | None = None
        self._kind: Kind | None = None
        self._run: list[str] = []
        self._id = ""
        self._created: datetime | None = None
        self._cut: str | None = None
        self.opaque = Opaque()

    @property
    def shown(self) -> bool:
        """Whether anything visible was written."""
        return self._created is not None

    def add(self, source: Kind, piece: str) -> None:
        """Take a piece; it is written with the next `flush`, joined with its neighbours.

        Args:
            source: Where it stood in the chunk; text may turn out to be reasoning.
            piece: As it came.
        """
        if not piece:
            return
        if source == self._source == self._kind and self._splitter is None and self._cleaner.leaves(piece):
            self._run.append(piece)  # of nearly all pieces
            return
        if source != self._source:
            self._release()
            if source == "reasoning" and self._source is None:
                self._splitter = ThinkSplitter(orphan=True)  # the server took the block out, not always whole (Q74)
            self._source = source
        self._split(self._cleaner.feed(piece))

    def flush(self) -> None:
        """Write what is certain, as a fragment that more may follow."""
        if self._kind is not None and self._run:
            self._write(self._kind, more=True)

    def drop(self) -> None:
        """Forget what waits for a continuation: half a tag is no text."""
        self._source = None

    def close(self, *, cut: str | None = None) -> None:
        """Close what is open; opaque data that belongs to no message gets one of its own.

        Args:
            cut: Why a text that is open is not complete.
        """
        self._release()
        self._cut = cut
        self._turn(None)
        self._cut = None

    def _split(self, piece: str) -> None:
        if self._source == "text" and self._splitter is not None:
            for kind, text in self._splitter.feed(piece):
                self._append(kind, text)
        elif self._source is not None and piece:
            self._append(self._source, piece)

    def _release(self) -> None:
        """Take what waits for a continuation that will not come as it is."""
        self._split(self._cleaner.end())
        if self._source == "text" and self._splitter is not None:
            for kind, text in self._splitter.end():
                self._append(kind, text)

    def _append(self, kind: Kind, text: str) -> None:
        if kind != self._kind:
            self._turn(kind)
        self._run.append(text)

    def _turn(self, kind: Kind | None) -> None:
        """Close the open message and begin one of another kind, of which nothing is written yet."""
        if self._kind == "text":
            self._write("text")
        data = self.opaque.take() if kind != "reasoning" else {}
        if self._kind == "reasoning" or data:
            if self._kind != "reasoning":
                self._id = new_id()
            self._write("reasoning", data=data)
        self._kind = kind
        if kind is not None:
            self._id, self._created = new_id(), utc_now()

    def _write(self, kind: Kind, *, more: bool = False, data: Mapping[str, Any] | None = None) -> None:
        fragment = Message(
            id=self._id,
            type=kind,
            content="".join(self._run),
            query={"provider": data} if data else {"cut": self._cut} if self._cut and kind == "text" else None,
            more=more,
            attempt=self._attempt,
            created_at=self._created or utc_now(),
        )
        self._run.clear()
        self._out.append(fragment)
