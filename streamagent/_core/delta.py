"""Read a provider's chunk. Everything foreign is checked here, before anything changes elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from streamagent.errors import ModelError
from streamagent.message import clean_text

from .failures import classify
from .think import Piece

_NOTHING: Final[Mapping[str, Any]] = {}
# A tool's name has 64 characters at most everywhere; an invented one is quoted back to the model.
_NAME: Final = 256
# Wire names of what a provider wants back as it was (quirks Q80 to Q83).
_OF_REASONING: Final = ("reasoning_details", "reasoning_items", "encrypted_content")
_OPAQUE: Final = frozenset({*_OF_REASONING, "thinking_blocks", "provider_specific_fields"})
_OF_CALLS: Final = ("extra_content", "provider_specific_fields")


@dataclass(slots=True)
class CallDelta:
    """A piece of a call, as it came; absent texts are empty."""

    index: int | str | None
    id: str
    name: str
    arguments: str
    opaque: Mapping[str, Any]


class Delta:
    """What a chunk says; a plain class, as most chunks set one of its attributes and there are many chunks.

    Args:
        pieces: Reasoning and text, in order.
        blocks: Thinking blocks.
        opaque: Other data of the reasoning that must be sent back as it is, by wire name.
        calls: Pieces of calls, in list order.
        size: Bytes of all opaque data in it.
        finish: The finish reason; empty when absent.
        usage: Token counts, unchecked.
        model: The model that answers, unchecked.
        error: What the provider reports to have failed; the chunk says nothing else then.
    """

    pieces: Sequence[Piece] = ()
    blocks: Sequence[Mapping[str, Any]] = ()
    opaque: Sequence[tuple[str, Any]] = ()
    calls: Sequence[CallDelta] = ()
    size: int = 0
    finish: str = ""
    usage: Any = None
    model: Any = None
    error: ModelError | None = None


def read_chunk(chunk: Any) -> Delta:
    """Read a chunk of OpenAI's shape, or of those that are near it.

    Args:
        chunk: The parsed JSON object.

    Raises:
        ModelError: Something in it has the wrong type (kind `protocol`); the text names it.
    """
    if chunk is None:
        raise _wrong("chunk", chunk)
    chunk = _mapping(chunk, "chunk")
    choices = _items(chunk.get("choices"), "choices")
    choice = _mapping(choices[0], "choice") if choices else _NOTHING
    delta = Delta()
    delta.usage = chunk.get("usage") or choice.get("usage")
    delta.model = chunk.get("model")
    error = chunk.get("error") or choice.get("error") or (chunk.get("object") == "error" and chunk)
    if error:
        delta.error = classify(error)
    elif choice:
        delta.finish = _text(choice.get("finish_reason"), "finish_reason")
        _read_delta(delta, _mapping(choice.get("delta"), "delta"))
    return delta


def _read_delta(delta: Delta, source: Mapping[str, Any]) -> None:
    pieces: list[Piece] = []
    if thought := source.get("reasoning_content") or source.get("reasoning"):
        pieces.append(("reasoning", _text(thought, "reasoning")))
    content = source.get("content") or source.get("refusal")
    if isinstance(content, str):
        pieces.append(("text", content))
    elif content:
        pieces.extend(_parts(content))
    delta.pieces = pieces
    if calls := source.get("tool_calls"):
        delta.calls = [_call(item) for item in _items(calls, "tool_calls")]
        delta.size = sum(_size(call.opaque) for call in delta.calls if call.opaque)
    if not _OPAQUE.isdisjoint(source):
        _read_opaque(delta, source)


def _read_opaque(delta: Delta, source: Mapping[str, Any]) -> None:
    delta.blocks = [_block(item) for item in _items(source.get("thinking_blocks"), "thinking_blocks")]
    delta.opaque = list(_opaque(source))
    for data in (*delta.blocks, *delta.opaque):
        delta.size += _size(data)


def _opaque(source: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _OF_REASONING:
        if value := source.get(key):
            yield key, value
    if signatures := _mapping(source.get("provider_specific_fields"), "fields").get("thought_signatures"):
        yield "provider_specific_fields", {"thought_signatures": signatures}


def _block(item: Any) -> Mapping[str, Any]:
    block = _mapping(item, "thinking block")
    _text(block.get("thinking"), "thinking")
    return block


def _parts(content: Any) -> Iterator[Piece]:
    """Read content that is a list of typed parts (quirk Q71); unknown types mean nothing."""
    for item in _items(content, "content"):
        part = _mapping(item, "content part")
        if part.get("type") == "thinking":
            thought = part.get("thinking")
            inner = [{"text": thought}] if isinstance(thought, str) else _items(thought, "thinking")
            for piece in inner:
                yield "reasoning", _text(_mapping(piece, "thinking part").get("text"), "thinking text")
        elif part.get("type") in ("text", "output_text"):
            yield "text", _text(part.get("text"), "text")


def _call(item: Any) -> CallDelta:
    entry = _mapping(item, "tool call")
    function = _mapping(entry.get("function"), "function")
    index = entry.get("index")
    if not isinstance(index, int | str | None):
        raise _wrong("index", index)
    return CallDelta(
        index=index,
        id=clean_text(_text(entry.get("id"), "id")),
        name=clean_text(_text(function.get("name"), "name"))[:_NAME],
        arguments=_arguments(function.get("arguments")),
        opaque={key: data for key in _OF_CALLS if (data := entry.get(key) or function.get(key))},
    )


def _arguments(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise _wrong("arguments", value) from error


def _size(data: Any) -> int:
    """Return the bytes of opaque data when it is stored, which also proves that it can be."""
    try:
        return len(orjson.dumps(data, default=dict))
    except (TypeError, ValueError) as error:
        raise ModelError("the provider sent data that cannot be stored", kind="protocol") from error


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if type(value) is dict or isinstance(value, Mapping):
        return value
    if value is None:
        return _NOTHING
    raise _wrong(name, value)


def _items(value: Any, name: str) -> Sequence[Any]:
    if type(value) is list or isinstance(value, list | tuple):
        return value
    if value is None:
        return ()
    raise _wrong(name, value)


def _text(value: Any, name: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise _wrong(name, value)


def _wrong(name: str, value: Any) -> ModelError:
    what = f"the provider sent a chunk whose {name} is of type {type(value).__name__}"
    return ModelError(what, kind="protocol", retryable=True)
