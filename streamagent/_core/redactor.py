"""Secrets in text that comes in pieces: known values anywhere, patterns within words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from streamagent.errors import ConfigError

_WORD = "".join(map(chr, range(0x21, 0x7F)))  # what keys and addresses are made of: printable ASCII, no space
_WORDS = re.compile(r"[!-~]++")
_SLICE = 8 * 1024  # characters of a long text that are looked at at once: it bounds the words, and so the time
_SHORTEST = 4  # characters of a known value: a shorter one would be found in ordinary text
_LONGEST = 4_096  # characters of a word that are looked at as a whole: a signed token has fewer
_NEVER = r"(?!)"
# What a pattern is checked by: escapes and classes are one character; what then is left of its quantifiers, anchors
# and references may make it backtrack, or depend on where a text was cut.
_CHARACTERS = re.compile(r"\\[^1-9AZs]|\[\^?\]?(?:[^\]\\]|\\.)*+\]", re.DOTALL)
_POSSESSIVE = re.compile(r"(?:(?<!\()[*+?]|\{\d*,?\d*\})\+")
_BACKTRACKING = re.compile(r"(?<!\()[*+?]|\{\d*,\d*\}|\)\{\d+\}|[\^$]|\\[1-9AZs]|\s|\(\?P")


class Redactor:
    """Replace known values, and what patterns find within a word (a run of printable ASCII characters).

    Args:
        patterns: Regular expressions. Their quantifiers are possessive (`++`, `{20,}+`), so that no text takes more
            than linear time; they have no anchors, no white space and no back-references.
        values: Known secrets, as they are and as JSON writes them.
        replacement: What stands in their place.

    Raises:
        ConfigError: A pattern or value that cannot be used; a value is not shown in the text.
    """

    def __init__(self, patterns: Iterable[str], values: Iterable[str], replacement: str) -> None:
        patterns = tuple(map(_checked, patterns))
        known = sorted({form for value in values for form in _forms(value)}, key=len, reverse=True)
        self.replacement = replacement
        self._numbers = len(patterns), len(known)
        self._patterns = re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or _NEVER)
        # One by one they are found faster: each begins with a text of its own.
        self._each = [re.compile(pattern) for pattern in patterns]
        self._values = re.compile("|".join(map(re.escape, known)) or _NEVER)
        # A value that is more than one word may begin in each of the last so many characters.
        self._reach = max((len(value) for value in known if value.strip(_WORD)), default=0)
        self.longest = max([_LONGEST, *map(len, known)])

    def __repr__(self) -> str:
        return "{} patterns and {} values".format(*self._numbers)

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return Tail(self).feed(text, final=True)

    def replace(self, text: str) -> str:
        """Return a text that is not cut within a secret without secrets; its words are not long."""
        return self.replacement.join(map(self._by_words, self._values.split(text)))

    def json(self, value: Any) -> Any:
        """Return a JSON value without secrets in its strings, numbers and names."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return self._object(value)
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        if isinstance(value, int | float) and self.text(str(value)) != str(value):
            return self.replacement
        return value

    def _object(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        """Redact names and values; names that are then the same are numbered, so that no value is lost."""
        clean: dict[Any, Any] = {}
        numbers = count(2)  # one for all: with many names it still takes linear time
        for name, item in value.items():
            shown = found = self.text(name) if isinstance(name, str) else name
            while shown in clean:
                shown = f"{found} {next(numbers)}"
            clean[shown] = self.json(item)
        return clean

    def border(self, text: str) -> int:
        """Return up to where no secret can grow any more when text follows: the last word's beginning, or before."""
        start, border = len(text) + 1, len(text) - self._reach
        while border < start:
            start = border
            border = len(text[: max(start, 0)].rstrip(_WORD))
            if self._reach:
                border = min((found.start() for found in _crossing(self._values, text, border)), default=border)
        return border

    def secret_at(self, text: str, border: int) -> tuple[int, int]:
        """Return the span of the secret that a border goes through; the border itself when there is none."""
        word = len(text[:border].rstrip(_WORD))
        found = [*_crossing(self._values, text, border), *_crossing(self._patterns, text, border, word)]
        return min((match.span() for match in found), default=(border, border))

    def _by_words(self, text: str) -> str:
        if not any(pattern.search(text) for pattern in self._each):
            return text
        return _WORDS.sub(lambda word: self._patterns.sub(lambda _: self.replacement, word[0]), text)


class Tail:
    """One text on its way: its end is held back while it may be the beginning of a secret.

    Args:
        redactor: What is looked for.
    """

    __slots__ = ("_held", "_inside", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""  # at most three times the longest word that is looked at
        self._inside = False  # of a secret longer than that, which ends with its word

    def feed(self, text: str, *, final: bool) -> str:
        """Take the next piece and return what is certain now.

        Args:
            text: The piece.
            final: It is the last one.
        """
        last = max(len(text) - 1, 0) // _SLICE * _SLICE
        begun = [self._take(text[start : start + _SLICE], final=False) for start in range(0, last, _SLICE)]
        return "".join([*begun, self._take(text[last:], final=final)])

    def _take(self, text: str, *, final: bool) -> str:
        text = self._held + text
        if self._inside:
            text = text.lstrip(_WORD)
            self._inside = not text
        longest, secret = self._redactor.longest, ""
        begin = end = len(text) if final else self._redactor.border(text)
        if len(text) - begin > 3 * longest:
            begin, end = self._redactor.secret_at(text, len(text) - longest)
            self._inside = end - begin > longest
            if self._inside:
                secret = self._redactor.replacement
            else:
                end = begin
        self._held = text[end:]
        return self._redactor.replace(text[:begin]) + secret


def _crossing(pattern: re.Pattern[str], text: str, border: int, start: int = 0) -> Iterator[re.Match[str]]:
    for found in pattern.finditer(text, start):
        if found.start() < border < found.end():
            yield found


def _checked(pattern: str) -> str:
    try:
        empty = re.compile(f"(?:{pattern})").match("")
    except re.error as error:
        raise ConfigError(f"pattern {pattern!r:.80} is no regular expression: {error}") from error
    if empty:
        raise ConfigError(f"pattern {pattern!r:.80} matches nothing, everywhere; say what it must begin with")
    if found := _BACKTRACKING.search(_POSSESSIVE.sub("", _CHARACTERS.sub("x", pattern))):
        raise ConfigError(
            f"pattern {pattern!r:.80} has {found[0]!r}: make quantifiers possessive, as in '[a-z]++' and "
            "'[0-9]{2,4}+', so that it takes linear time; leave out anchors, groups with names or numbers, and white "
            "space: it is looked for within words"
        )
    return pattern


def _forms(value: str) -> set[str]:
    """Return a value as it is, and as it stands in JSON text."""
    if not isinstance(value, str) or len(value) < _SHORTEST:
        raise ConfigError(f"a value to redact is text of {_SHORTEST} characters or more; one of these is not")
    return {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
