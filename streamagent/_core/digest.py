"""One short name for equal tool calls, however their arguments were written."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from streamagent.calls import ToolSpec


def call_digest(query: Mapping[str, Any], raw: str) -> str:
    """Name a call by its tool and its arguments, in SHA-256.

    Args:
        query: The call's query; arguments that are equal as JSON objects are equal here, in any order of their keys.
        raw: The arguments as they were written, which count when they could not be read.
    """
    arguments = query.get("args")
    return _digest([query.get("tool"), raw if arguments is None else arguments])


def spec_version(spec: ToolSpec) -> str:
    """Name a tool as a model is told of it: another description or another schema is another tool."""
    return _digest([spec.name, spec.description, spec.parameters])[:16]


def approval_digest(version: str, tool: str, args: Mapping[str, Any]) -> str:
    """Name what is approved: these arguments, of this version of a tool."""
    return _digest([version, tool, args])


def covers(grant: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """Tell whether a grant holds for a call.

    Args:
        grant: The query of the decision; its `always` has a value, or a pattern with `*` and `?`, for each argument
            that matters. A pattern must fit the whole text, on one line, and fits no path with a step `..` in it.
        asked: The query of the request.
    """
    if (grant.get("tool"), grant.get("version")) != (asked.get("tool"), asked.get("version")):
        return False
    args = asked.get("args") or {}
    return all(name in args and _fits(args[name], wanted) for name, wanted in grant.get("always", {}).items())


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(value, str) and isinstance(wanted, str):
        return value == wanted or (not _climbs(value) and _pattern(wanted).fullmatch(value) is not None)
    return equal(value, wanted)


def _climbs(text: str) -> bool:
    """Tell whether a path leads out of where it seems to be; no `*` stands for that."""
    return ".." in re.split(r"[/\\]", text)


def _pattern(text: str) -> re.Pattern[str]:
    """Read `*` and `?`, which stand for characters of one line, and a backslash in front of them for themselves."""
    meant = {"*": ".*", "?": "."}
    parts = re.findall(r"\\[*?\\]|.", text, re.DOTALL)
    return re.compile("".join(meant.get(part) or re.escape(part[-1]) for part in parts))


def equal(first: Any, second: Any) -> bool:
    """Tell whether two values are the same in JSON, where 1 is 1.0 and neither is true."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return bool(first == second)


def _digest(value: Any) -> str:
    # Escaped to ASCII, so that half a surrogate pair is hashed, too.
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
