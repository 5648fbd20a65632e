"""One short name for equal tool calls, however their arguments were written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def call_digest(query: Mapping[str, Any], raw: str) -> str:
    """Name a call by its tool and its arguments, in SHA-256.

    Args:
        query: The call's query; arguments that are equal as JSON objects are equal here, in any order of their keys.
        raw: The arguments as they were written, which count when they could not be read.
    """
    arguments = query.get("args")
    # Escaped to ASCII, so that half a surrogate pair is hashed, too.
    text = json.dumps([query.get("tool"), raw if arguments is None else arguments], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
