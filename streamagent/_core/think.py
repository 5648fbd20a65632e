"""Split a leading think block from the answer (quirks Q72 to Q75)."""

from __future__ import annotations

from typing import Final, Literal

Kind = Literal["reasoning", "text"]
Piece = tuple[Kind, str]
Pieces = tuple[Kind, list[str]]  # of one kind, that came together

OPENER: Final = "<think>"
CLOSER: Final = "</think>"
# White space that may stand before the first tag: templates write a few line breaks.
_INDENT: Final = 64


class ThinkSplitter:
    """Tell reasoning from text in content that has both.

    Only a block that leads the content is reasoning; a tag that comes later is literal text. What is held back is a
    possible beginning of a tag, never more.

    Args:
        starts_in_think: The model's template has opened the block already.
        orphan: The block came by another way; one closer that leads the content is left over from it.
    """

    __slots__ = ("_held", "_inside", "_lead")

    def __init__(self, *, starts_in_think: bool = False, orphan: bool = False) -> None:
        self._inside = starts_in_think
        self._lead = CLOSER if orphan else OPENER
        self._held = ""

    def feed(self, text: str) -> list[Piece]:
        """Return what is certain now.

        Args:
            text: The next piece of content.
        """
        text, self._held = self._held + text, ""
        if self._lead:
            text = self._after_lead(text)
        if not self._inside:
            return [("text", text)] if text else []
        thought, closer, answer = text.partition(CLOSER)
        if closer:
            self._inside = False
        elif tail := _tail(thought):
            thought, self._held = thought[: -len(tail)], tail
        pieces: list[Piece] = [("reasoning", thought), ("text", answer)]
        return [piece for piece in pieces if piece[1]]

    def end(self) -> list[Piece]:
        """Return what was held back: no tag will come of it."""
        held, self._held, self._lead = self._held, "", ""
        return [("reasoning" if self._inside else "text", held)] if held else []

    def _after_lead(self, text: str) -> str:
        """Skip the tag that leads the content; hold everything while it may still come."""
        start = text.lstrip()
        indented = len(text) - len(start) <= _INDENT
        if indented and start.startswith(self._lead):
            self._inside = self._lead == OPENER
            text = start.removeprefix(self._lead)
        elif indented and self._lead.startswith(start):
            self._held = text
            return ""
        self._lead = ""
        return text


def _tail(text: str) -> str:
    """Return the end of `text` that may become a closer."""
    start = text.rfind("<", max(0, len(text) - len(CLOSER) + 1))
    return text[start:] if start >= 0 and CLOSER.startswith(text[start:]) else ""
