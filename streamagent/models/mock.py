"""`MockModel`: a model that needs nothing and always says the same; the default when nothing is configured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import anyio

from streamagent._core.response_format import without_words
from streamagent._core.sse import DONE

from .attempt import Chunks
from .chunks import ChunkModel, Request
from .example import example_arguments


class MockModel(ChunkModel):
    """Answer without a provider, deterministically.

    A user's message is answered by a call of the first tool whose required parameters can be made up, once; a tool's
    result by a text that quotes it; anything else by a text that quotes the prompt. Where an object is asked for whose
    required fields can be made up, it is the text.

    Args:
        message: The text to answer with, instead of one that quotes.
        delay: Wait before each chunk, in seconds.
        chunk: Length of the text's fragments, in characters.
    """

    def __init__(self, message: str | None = None, *, delay: float = 0.0, chunk: int = 16) -> None:
        super().__init__("mock")
        self._message = message
        self._delay = delay
        self._chunk = chunk

    async def chunks(self, request: Request) -> Chunks:
        """Play the answer; see `ChunkModel.chunks`."""
        for chunk in self._answer(request):
            await anyio.sleep(self._delay)
            yield chunk
        yield DONE

    def _answer(self, request: Request) -> Iterator[Mapping[str, Any]]:
        last = request.messages[-1] if request.messages else {}
        prompt = _text(last)
        call = _call(request, prompt) if last.get("role") == "user" else None
        if call is not None:
            name, arguments = call
            said = json.dumps(arguments, ensure_ascii=False)
            call_id = f"mock_{len(request.messages)}"  # a conversation only grows: unique in it
            yield _delta(tool_calls=[{"index": 0, "id": call_id, "function": {"name": name, "arguments": ""}}])
            for piece in self._pieces(said):
                yield _delta(tool_calls=[{"index": 0, "function": {"arguments": piece}}])
        else:
            said = self._message or _object(request, prompt) or _quote(last, prompt)
            for piece in self._pieces(said):
                yield _delta(content=piece)
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"}]}
        yield {"choices": [], "usage": _usage(request.messages, said)}

    def _pieces(self, text: str) -> Iterator[str]:
        return (text[start : start + self._chunk] for start in range(0, len(text), self._chunk))


def _call(request: Request, prompt: str) -> tuple[str, dict[str, Any]] | None:
    if request.settings.tool_choice == "none":
        return None
    system = " ".join(without_words(_text(entry)) for entry in request.messages if entry.get("role") == "system")
    for tool in request.tools:
        arguments = example_arguments(tool.parameters, prompt, hints=system)
        if arguments is not None and request.settings.tool_choice in (None, "auto", "required", tool.name):
            return tool.name, arguments
    return None


def _object(request: Request, prompt: str) -> str | None:
    schema = request.settings.response_schema
    value = None if schema is None else example_arguments(schema, prompt)
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _quote(last: Mapping[str, Any], prompt: str) -> str:
    return f"Tool result: {prompt}" if last.get("role") == "tool" else f"This is a mock answer to: {prompt}"


def _text(entry: Mapping[str, Any]) -> str:
    content = entry.get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part["type"] == "text")


def _delta(**delta: Any) -> Mapping[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def _usage(messages: Sequence[Mapping[str, Any]], said: str) -> Mapping[str, int]:
    """Count words as tokens."""
    prompt, completion = sum(len(_text(entry).split()) for entry in messages), len(said.split())
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
