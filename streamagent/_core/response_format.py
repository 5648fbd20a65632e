"""How a model is told the JSON Schema of its answer: in words, and by `response_format` of OpenAI's completions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

Schema = Mapping[str, Any]

_NAME = 64  # characters that OpenAI takes


_WORDS = "Answer with one JSON object and nothing else. Its JSON Schema: "


def in_words(schema: Schema, system: str | None) -> str:
    """Return a system prompt that asks for the object, behind what `system` says."""
    asked = f"{_WORDS}{orjson.dumps(schema).decode()}"
    return f"{system}\n\n{asked}" if system else asked


def without_words(system: str) -> str:
    """Return what a system prompt says before it asks for an object."""
    return system.partition(_WORDS)[0].strip()


class _Loose(Exception):
    """An object of the schema has keys that are not known beforehand."""


def response_format(schema: Schema) -> dict[str, Any]:
    """Ask for an answer that fits `schema`, strictly where the schema can be told strictly.

    Strict means that every object lists all its properties as required and allows no other; one with free keys is
    passed on as it is, and providers take it as advice.
    """
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", str(schema.get("title") or "answer"))[:_NAME]
    try:
        told = {"name": name, "schema": _strict(schema), "strict": True}
    except _Loose:
        told = {"name": name, "schema": dict(schema), "strict": False}
    return {"type": "json_schema", "json_schema": told}


def _strict(value: Any, *, named: bool = False) -> Any:
    """Copy a schema, or a map of named ones, and make its objects strict; a default is no part of a strict schema."""
    if isinstance(value, list):
        return [_strict(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if named:
        return {key: _strict(item) for key, item in value.items()}
    if value.get("type") == "object" and (value.get("additionalProperties") or "properties" not in value):
        raise _Loose
    copied = {
        key: item if key in {"const", "enum"} else _strict(item, named=key in {"properties", "$defs"})
        for key, item in value.items()
        if key != "default"
    }
    if "properties" in value:
        copied |= {"required": list(value["properties"]), "additionalProperties": False}
    return copied
