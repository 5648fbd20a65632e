"""Arguments made up from a tool's schema: what the mock calls with, and what the local model is shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any

Schema = Mapping[str, Any]

_DEPTH = 8  # deeper schemas are not for made-up arguments; a recursive one would never end


_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a about add after all am an and any are as at available be can could currently did do does find for from get
        give has have how i if in is it its know left like list many me much my need now of on or our please read see
        show some stock tell that the their them there these they this to today up us want was we were what when where
        which who why will with would you your""",
    )
)


class Unfit(Exception):
    """Nothing simple fits the schema."""


def example_arguments(schema: Schema, prompt: str, *, hints: str = "") -> dict[str, Any] | None:
    """Fill the required parameters of a tool.

    Args:
        schema: The tool's parameters, JSON Schema.
        prompt: Where texts and numbers are taken from.
        hints: Where a file's or another name is looked for that the prompt does not have.

    Returns:
        The arguments, or `None` when nothing simple fits.
    """
    try:
        return _object(schema, _Source(schema, prompt, hints), 0)
    except Unfit:
        return None


def key_phrase(text: str) -> str:
    """Return what stands out in `text`: what is quoted, else a file's name, else a proper name; may be empty."""
    patterns = (
        r"[\"'`“]([^\"'`”]+)[\"'`”]",
        r"([\w\-/]+(?:[./@][A-Za-z]\w*)+)",
        r"(?<=[a-z,] )([A-Z]\w+(?: [A-Z]\w+)*)",
    )
    return next((found[1] for pattern in patterns if (found := re.search(pattern, text))), "")


def content_words(text: str) -> str:
    """Return the longest run of words that say what `text` is about; may be empty."""
    words = re.findall(r"\w+|[^\w\s]", text)
    runs = [
        list(run)
        for common, run in groupby(words, lambda word: not word.isalnum() or word.lower() in _STOP_WORDS)
        if not common
    ]
    return " ".join(max(runs, key=lambda run: len(" ".join(run)), default=[]))


class _Source:
    """Where references and values are looked up."""

    def __init__(self, root: Schema, prompt: str, hints: str) -> None:
        self._root = root
        self.word = key_phrase(prompt) or key_phrase(hints) or content_words(prompt) or "text"
        numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", prompt)]
        self._numbers = iter(numbers)

    def number(self) -> float:
        """Return the prompt's next number."""
        return next(self._numbers, 0.0)

    def resolve(self, schema: Schema) -> Schema:
        """Follow a local reference, `#/$defs/…`."""
        target: Any = self._root
        for step in str(schema["$ref"]).removeprefix("#/").split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            raise Unfit
        return target


def _object(schema: Schema, source: _Source, depth: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {name: _value(properties.get(name, {}), source, depth + 1) for name in schema.get("required", ())}


def _value(schema: Schema, source: _Source, depth: int) -> Any:
    if depth > _DEPTH:
        raise Unfit
    for key in ("const", "default", "example"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    if "$ref" in schema:
        return _value(source.resolve(schema), source, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _value(schema[key][0], source, depth + 1)
    return _typed(schema, source, depth)


def _typed(schema: Schema, source: _Source, depth: int) -> Any:
    kind = schema.get("type", "string")
    match kind[0] if isinstance(kind, list) else kind:
        case "string":
            return _string(schema, source.word)
        case "integer":
            return int(_number(schema, source.number()))
        case "number":
            return _number(schema, source.number())
        case "boolean":
            return False
        case "array":
            return [_value(schema.get("items", {}), source, depth + 1)] * schema.get("minItems", 0)
        case "object":
            return _object(schema, source, depth)
        case "null":
            return None
    raise Unfit


def _string(schema: Schema, word: str) -> str:
    text = word[: schema.get("maxLength", len(word))]
    if len(text) < schema.get("minLength", 0) or "format" in schema or "pattern" in schema:
        raise Unfit
    return text


def _number(schema: Schema, number: float) -> float:
    return float(max(schema.get("minimum", -math.inf), min(schema.get("maximum", math.inf), number)))
