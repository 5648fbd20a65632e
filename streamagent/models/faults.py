"""What went wrong at a provider: from a foreign exception to a `ModelError` whose text holds no secrets."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime

from streamagent._core.failures import classify
from streamagent.errors import ModelError

_SERVER_ERROR = 500
_LIMIT = 1000  # characters kept of a provider's text; some send whole HTML pages
_SHORTEST = 8  # characters of a secret; a shorter value would blank out common words

# What only the transport says. An error inside a stream arrives as its text alone, with status 500.
_TRANSPORT = (
    ("truncated", r"ended before a finish_reason|incomplete chunked read|peer closed|connection reset"),
    ("connection", r"connection error|cannot connect|connection refused|name resolution"),
    ("protocol", r"expecting (value|property name|',')|unterminated string|extra data|invalid control"),
)

_PREFIXES = re.compile(r"^(?:[\w.]*(?:Error|Exception|Timeout)(?:: | - ))+")
_KEY_LIKE = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|ghp)[-_][\w\-*.]{6,}|\bAIza[\w-]{20,}|(?<=[Bb]earer )[^\s'\"]+"
    r"|(?<=[?&]key=)[^\s&'\"]+|(?<=api_key=)[^\s&'\",]+|(?<=://)[^\s/@]+:[^\s/@]+(?=@)"
)


def to_model_error(error: Exception, secrets: Iterable[str] = ()) -> ModelError:
    """Translate what a provider's library raised.

    Args:
        error: The exception; its `status_code`, its response's headers and its text are looked at.
        secrets: Values that must not occur in the text.
    """
    text, _, _ = str(error).partition(" Original exception: ")
    text = redact(_PREFIXES.sub("", text) or type(error).__name__, secrets)
    midstream = type(error).__name__ == "MidStreamFallbackError"  # its status says nothing: always 500
    status = getattr(error, "status_code", None)
    if status in (None, _SERVER_ERROR):
        for kind, pattern in _TRANSPORT:
            if re.search(pattern, text, re.IGNORECASE):
                return ModelError(
                    text, kind="truncated" if midstream and kind == "connection" else kind, retryable=True
                )
    if midstream:
        return classify(text)
    told = classify({"type": type(error).__name__, "status": status, "message": text})
    shown = f"{text[:_LIMIT]} (status {status})" if status else text[:_LIMIT]
    return ModelError(shown, kind=told.kind, retryable=told.retryable, retry_after=_retry_after(error))


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Blank out known secrets, those of the environment, and what looks like a key."""
    named = [value for name, value in os.environ.items() if name.endswith(("_KEY", "_TOKEN", "_SECRET", "_PASSWORD"))]
    for secret in sorted({*secrets, *named}, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, "[redacted]")
    return _KEY_LIKE.sub("[redacted]", text)


def _retry_after(error: Exception) -> float | None:
    """Read `Retry-After`, seconds or a date (RFC 9110 §10.2.3), from where the library keeps it."""
    headers = getattr(getattr(error, "response", None), "headers", None)
    value = headers.get("retry-after") if isinstance(headers, Mapping) else None
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = _seconds_until(value)
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _seconds_until(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except ValueError:
        return math.nan
