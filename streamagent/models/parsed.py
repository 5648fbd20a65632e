"""What LiteLLM's parsers make of a provider's events, as the assembler takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamagent._core.delta import read_chunk
from streamagent._core.event import Said, read_piece
from streamagent._core.sse import parse_object
from streamagent._core.think import Piece
from streamagent.errors import ModelError

from .faults import WRONG_SHAPE, to_model_error
from .wires import Call

_BARE = {"provider_specific_fields": None}  # a delta of LiteLLM's without reasoning
_SPOKEN = frozenset({"content", "role"})


def read(call: Call, data: bytes) -> Said | None:
    """Read the data of an event.

    Args:
        call: What it answers; it has LiteLLM's parser.
        data: What `SSEDecoder` yielded, but not `DONE`.

    Returns:
        What it says; `None` when it means nothing.

    Raises:
        ModelError: It is damaged, or not in the provider's form (kind `protocol`), or the parser says that the answer
            failed.
    """
    if call.plain and (piece := read_piece(data)):
        return piece
    event = parse_object(data)
    if event is None:
        return None
    if event.get("error") or event.get("object") == "error":
        return read_chunk(event)
    finish = _own_finish(event)  # before the parser, which edits the event
    try:
        chunk = call.parse(event)
    except Exception as error:
        if "choices" in event and not getattr(error, "status_code", None):
            return read_chunk(event)  # what LiteLLM stumbles over is often no fault, as a delta that is null
        raise _failure(error) from error
    if chunk is None:
        return None
    if not isinstance(chunk, Mapping) and (piece := _piece(chunk)):
        return piece
    delta = read_chunk(_plain(chunk) if isinstance(chunk, Mapping) else chunk.model_dump(exclude_none=True))
    if delta.finish == "stop" and finish:
        delta.finish = finish
    return delta


def _own_finish(event: Mapping[str, Any]) -> str:
    """Return the finish reason in the provider's word, as OpenAI and Gemini place it.

    LiteLLM makes `stop` of words that mean a failure, such as `error`, so that half an answer would pass for a whole.
    """
    for choices, name in (("choices", "finish_reason"), ("candidates", "finishReason")):
        said = event.get(choices)
        choice = said[0] if isinstance(said, list) and said else None
        if isinstance(choice, Mapping) and isinstance(choice.get(name), str):
            return str(choice[name])
    return ""


def _piece(chunk: Any) -> Piece | None:
    """Return the text of a chunk that is nothing else, as nearly all are: to dump one takes as long as to parse it."""
    choice = chunk.choices[0] if chunk.choices else None
    if choice is None or choice.finish_reason or getattr(chunk, "usage", None) or choice.delta.__dict__ != _BARE:
        return None
    said = choice.delta.model_extra or {}
    text = said.get("content")
    if not isinstance(text, str) or any(said[name] for name in said.keys() - _SPOKEN):
        return None
    return "text", text


def _plain(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """Make a chunk of OpenAI's shape of LiteLLM's own shape, `GenericStreamingChunk`."""
    call = chunk.get("tool_use")
    delta = {
        "content": chunk.get("text"),
        "tool_calls": call and [call],
        "provider_specific_fields": chunk.get("provider_specific_fields"),
    }
    return {"choices": [{"delta": delta, "finish_reason": chunk.get("finish_reason")}], "usage": chunk.get("usage")}


def _failure(error: Exception) -> ModelError:
    if getattr(error, "status_code", None):
        return to_model_error(error)
    return ModelError(f"{WRONG_SHAPE} ({type(error).__name__})", kind="protocol", retryable=True)
