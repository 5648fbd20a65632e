"""Say what a provider's error object means (quirks Q52 to Q56)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from streamagent.errors import ModelError
from streamagent.message import clean_text

_RETRYABLE: Final = frozenset({"malformed_call", "overloaded", "rate_limited", "timeout", "provider_error"})

# The first that is found in the type, code and message decides: providers put the same error under different types.
_WORDS: Final = [
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"context.?(length|window|size)|maximum context|(prompt|input) is too long", "context_overflow"),
        (r"tool.?use.?failed|tool call validation|malformed.?function|failed to call a function", "malformed_call"),
        (r"overloaded|over capacity|at capacity|server is busy|temporarily unavailable", "overloaded"),
        (r"insufficient.?(quota|balance|credits)|current quota|billing|credit balance", "quota"),
        (r"rate.?limit|too many requests|resource.?exhausted|throttl", "rate_limited"),
        (r"authentication|unauthori[sz]ed|invalid.?api.?key|permission.?(denied|error)|forbidden", "auth"),
        (r"content.?(filter|policy)", "content_filter"),
        (r"timed?.?out", "timeout"),
        (r"not.?found", "not_found"),
        (r"invalid.?request|bad.?request|invalid.?argument", "bad_request"),
    )
]
_STATUS: Final = {
    "400": "bad_request",
    "401": "auth",
    "402": "quota",
    "403": "auth",
    "404": "not_found",
    "408": "timeout",
    "422": "bad_request",
    "429": "rate_limited",
    "503": "overloaded",
    "504": "timeout",
    "529": "overloaded",
}
_CODES: Final = range(2, 10_000)
_KEY: Final = re.compile(r"\b(sk|pk|gsk|xai|hf|AIza)[-_]?[\w*.-]{8,}|(?<=Bearer )\S+")
# What a user reads; the rest of a provider's page helps nobody.
_LONGEST: Final = 1000


def classify(error: Any) -> ModelError:
    """Translate the `error` of a chunk.

    Args:
        error: An object with `type`, `code` and `message`, or a text; anything else is a `provider_error`.

    Returns:
        The error, of the kind that its words or else its code say, with what looks like a key taken out of its text.
    """
    fields = error if isinstance(error, Mapping) else {"message": error}
    labels = [label for key in ("type", "code", "status") if (label := _label(fields.get(key)))]
    message = fields.get("message")
    text = clean_text(message[:_LONGEST]) if isinstance(message, str) and message else "the provider reported an error"
    searched = " ".join([*labels, text])
    named = (kind for pattern, kind in _WORDS if pattern.search(searched))
    numbered = (_STATUS[label] for label in labels if label in _STATUS)
    kind = next(named, None) or next(numbered, "provider_error")
    shown = text if not labels else f"{text} ({' '.join(labels)})"
    return ModelError(_KEY.sub("[key]", shown), kind=kind, retryable=kind in _RETRYABLE)


def _label(value: Any) -> str:
    if isinstance(value, str):
        return clean_text(value[:100])
    return str(value) if isinstance(value, int) and value in _CODES else ""
