"""`redact`: secrets do not pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from streamagent._core.redactor import Redactor, Tail
from streamagent.errors import ConfigError
from streamagent.message import Message
from streamagent.protocols import Stage, Stream

# Each begins with a text of its own, which makes it fast to find, and ends after a number of characters.
KEY_PATTERNS = (
    r"sk[-_][A-Za-z0-9_-]{16,512}+",  # OpenAI, Anthropic, OpenRouter, Stripe
    r"pk[-_][A-Za-z0-9_-]{16,512}+",
    r"rk[-_][A-Za-z0-9_-]{16,512}+",
    r"gh[opsur]_[A-Za-z0-9_]{16,512}+",  # GitHub
    r"github_pat_[A-Za-z0-9_]{16,512}+",
    r"glpat-[A-Za-z0-9_-]{16,512}+",  # GitLab
    r"hf_[A-Za-z0-9]{16,512}+",  # Hugging Face
    r"AKIA[A-Z0-9]{16}",  # AWS
    r"ASIA[A-Z0-9]{16}",
    r"AIza[A-Za-z0-9_-]{30,512}+",  # Google
    r"xox[abeoprs]-[A-Za-z0-9-]{10,512}+",  # Slack
    r"eyJ[A-Za-z0-9_-]{8,1024}+\.eyJ[A-Za-z0-9_.-]{8,3000}+",  # JSON web tokens (RFC 7519)
    r"://[A-Za-z0-9._~%!$&()*+,;=-]{0,128}+:[A-Za-z0-9._~%!$&()*+,;=:-]{1,128}+@",  # user and password of a URL
)
EMAIL_PATTERN = r"[A-Za-z0-9._%+-]{1,64}+@[A-Za-z0-9-]{1,63}+(?:\.[A-Za-z0-9-]{1,63}+){1,8}+"  # lengths of RFC 5321
# Identifiers of ours and of providers, what programs read, and what a provider wants back byte for byte.
_KEPT = frozenset({"call", "id", "mime", "model", "provider", "reason", "usage"})
_KEPT_OF: dict[str, frozenset[str]] = {
    "stop": _KEPT | {"limit"},  # numbers
    **dict.fromkeys(("file", "image"), _KEPT | {"data"}),  # base64 is no text, and a part cut out of it ruins it
}


def redact(
    *, patterns: Iterable[str] = KEY_PATTERNS, values: Iterable[str] = (), replacement: str = "[redacted]"
) -> Stage:
    """Replace known secrets and what looks like one, in texts, calls, results and errors.

    Of a call that is its tool's name and its arguments with their names; identifiers stay.

    As a context stage it decides what the model sees, as a reply stage what is stored and shown. A secret is found
    wherever a text is cut into fragments: the last word is held back until it is complete, at most some thousand
    characters of it, and nothing else is.

    Args:
        patterns: Regular expressions, looked for within words (runs of printable ASCII characters). They must take
            linear time: quantifiers are possessive, there are no anchors.
        values: Known secrets of 4 characters or more, of any characters; they are also found as JSON writes them.
        replacement: What stands in their place.

    Raises:
        ConfigError: A pattern or value that cannot be used, or there are none.
    """
    if isinstance(patterns, str) or isinstance(values, str):
        raise ConfigError("redact takes lists of patterns and values; put brackets around the one text")
    patterns, values = tuple(patterns), tuple(values)
    if not patterns and not values:
        raise ConfigError("redact has nothing to look for; give patterns or values")
    redactor = Redactor(patterns, values, replacement)

    async def stage(stream: Stream) -> Stream:
        texts: dict[str, _Text] = {}
        async for fragment in stream:
            opens = fragment.id not in texts
            text = texts.pop(fragment.id, None) or _Text(redactor)
            if fragment.more:
                texts[fragment.id] = text
            shown = text.feed(fragment)
            if opens or shown.content or shown.query is not None or not shown.more:
                yield shown
        for text in texts.values():
            for shown in text.rest():
                yield shown

    return stage


class _Text:
    """A message on its way."""

    __slots__ = ("_last", "_redactor", "_tail")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._tail = Tail(redactor)
        self._last: Message | None = None

    def feed(self, fragment: Message) -> Message:
        """Return the fragment with what is certain of its text; the same one when nothing is changed."""
        self._last = fragment
        content = self._tail.feed(fragment.content, final=not fragment.more)
        query = fragment.query
        if query is not None:
            kept = _KEPT_OF.get(fragment.type, _KEPT)
            query = {name: value if name in kept else self._redactor.json(value) for name, value in query.items()}
        if content == fragment.content and query == fragment.query:
            return fragment
        return replace(fragment, content=content, query=query)

    def rest(self) -> list[Message]:
        """Return what is left of a message that was never closed."""
        content = self._tail.feed("", final=True)
        return [replace(self._last, content=content, query=None)] if content and self._last else []
