"""What went wrong at a provider: from a foreign exception to a `ModelError` whose text holds no secrets."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from streamagent._core.failures import classify
from streamagent.errors import ModelError

_SERVER_ERROR = 500
_LIMIT = 1000  # characters kept of a provider's text; some send whole HTML pages
_SHORTEST = 8  # characters of a secret; a shorter value would blank out common words
_PART = 12  # characters from a secret's start that give it away when a text was cut

WRONG_SHAPE = "what came is no answer in the provider's form; is api_base the address of this provider's API?"
# What LiteLLM's own code says, with a status of its making: a key is missing, or something came that it cannot read.
_OURS = (
    ("auth", r"missing credentials|missing [\w ]*(api|access).?key|(api|access).?key .{0,20}(must be set|is required)"),
    ("protocol", r"got unexpected response"),
)
# What only the transport says. An error inside a stream arrives as its text alone, with status 500.
_TRANSPORT = (
    ("truncated", r"ended before a finish_reason|incomplete chunked read|peer closed|connection reset"),
    ("connection", r"connection error|cannot connect|connection refused|name resolution"),
    ("protocol", r"expecting (value|property name|',')|unterminated string|extra data|invalid control"),
    ("protocol", r"'\w+' object (has no|is not|does not)"),
)
_SECRET_NAME = re.compile(r"key|token|secret|password|authorization|credential|cookie", re.IGNORECASE)
_PREFIXES = re.compile(r"^(?:[\w.]*(?:Error|Exception|Timeout)(?:: | - ))+")
_TAIL = re.compile(r" Original exception: |\nTraceback \(most recent call last\)")
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
    text = _TAIL.split(str(error), maxsplit=1)[0]
    text = redact(_PREFIXES.sub("", text) or type(error).__name__, secrets)[:_LIMIT]
    if isinstance(error, ImportError):  # its name says "not found", and no provider was asked
        return ModelError(f"LiteLLM needs what is not installed: {text}", kind="bad_request", retryable=False)
    midstream = type(error).__name__ == "MidStreamFallbackError"  # its status says nothing: always 500
    status = getattr(error, "status_code", None)
    for kind, pattern in (*_OURS, *_TRANSPORT) if status in (None, _SERVER_ERROR) else _OURS:
        if re.search(pattern, text, re.IGNORECASE):
            text = f"{WRONG_SHAPE} ({text})" if kind == "protocol" else text
            cut = midstream and kind == "connection"
            return ModelError(text, kind="truncated" if cut else kind, retryable=kind != "auth")
    if midstream:
        return classify(text)
    told = classify({"type": type(error).__name__, "status": status, "message": text})
    shown = f"{text} (status {status})" if status else text
    headers = getattr(getattr(error, "response", None), "headers", None)
    return ModelError(shown, kind=told.kind, retryable=told.retryable, retry_after=_retry_after(headers))


def refusal(status: int, body: str, headers: Mapping[str, str], secrets: Iterable[str] = ()) -> ModelError:
    """Say what a response means whose status is an error.

    Args:
        status: The status, from 400.
        body: The body, or its beginning.
        headers: The headers; `Retry-After` is looked at.
        secrets: Values that must not occur in the text.
    """
    fields = _error_of(body)
    text = redact(str(fields.get("message") or body).strip() or "no reason was given", secrets)[:_LIMIT]
    told = classify({**fields, "message": text, "status": status})
    shown = f"{text} (status {status})"
    return ModelError(shown, kind=told.kind, retryable=told.retryable, retry_after=_retry_after(headers))


def _error_of(body: str) -> Mapping[str, Any]:
    """Find the error object in a body: under `error`, in the first of a list, or the body itself."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    value = value[0] if isinstance(value, list) and value else value
    error = value.get("error", value) if isinstance(value, Mapping) else None
    return error if isinstance(error, Mapping) else {"message": error} if isinstance(error, str) else {}


def nothing_came(content_type: str) -> ModelError:
    """Say that a response had no events, and whether it was in another form."""
    if "stream" in content_type or "ndjson" in content_type:
        return ModelError("the answer broke off before it began", kind="truncated", retryable=True)
    return ModelError(f"{WRONG_SHAPE} (content type {content_type!r})", kind="protocol", retryable=True)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Blank out known secrets, those of the environment, their beginnings, and what looks like a key."""
    named = [value for name, value in os.environ.items() if name.endswith(("_KEY", "_TOKEN", "_SECRET", "_PASSWORD"))]
    known = {secret for secret in (*secrets, *named) if len(secret) >= _SHORTEST}
    return _KEY_LIKE.sub("[redacted]", _blank(text, known) if known else text)


def find_secrets(parameters: Any, *, secret: bool = False) -> Iterator[str]:
    """Find the values in a call's parameters whose name, or that of what they are in, looks secret.

    Args:
        parameters: Mappings, lists and values, nested.
        secret: They are in something that looks secret.

    Yields:
        The texts; of `Bearer …` and the like also what follows the first word.
    """
    if isinstance(parameters, Mapping):
        for name, value in parameters.items():
            yield from find_secrets(value, secret=secret or bool(_SECRET_NAME.search(str(name))))
    elif isinstance(parameters, str) and secret:
        yield from (parameters, parameters.partition(" ")[2])
    elif isinstance(parameters, list | tuple):
        for value in parameters:
            yield from find_secrets(value, secret=secret)


def _blank(text: str, secrets: Collection[str]) -> str:
    """Replace secrets and beginnings of them, at each place as much as agrees with any of them."""
    starts = sorted({secret[:_PART] for secret in secrets}, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, starts)))
    shown, position = [], 0
    while found := pattern.search(text, position):
        shown += [text[position : found.start()], "[redacted]"]
        position = found.start() + max(_agreement(secret, text, found.start()) for secret in secrets)
    return "".join([*shown, text[position:]])


def _agreement(secret: str, text: str, start: int) -> int:
    """Count the characters of a secret that stand in the text from `start` on."""
    there = text[start : start + len(secret)]
    return next(
        (index for index, pair in enumerate(zip(secret, there, strict=False)) if pair[0] != pair[1]), len(there)
    )


def _retry_after(headers: Any) -> float | None:
    """Read `Retry-After`, seconds or a date (RFC 9110 §10.2.3)."""
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
    except (ValueError, OverflowError):
        return math.nan
