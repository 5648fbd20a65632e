"""Shape a conversation so that a very small model does something sensible with it (all of this was tried)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from streamagent._core.response_format import without_words
from streamagent.calls import ToolSpec
from streamagent.message import Message

from .example import example_arguments, key_phrase

_ROOM = 3_000  # characters of data or history; with the answer they fit into the model's 2,048 tokens
_LIST_EXAMPLE = (
    Message.user("Data:\n- Lamp: 2 units\n- Chair: 7 units\n\nWhat do you have?"),
    Message(content="We have:\n- Lamp: 2 units\n- Chair: 7 units"),
)
_VALUE_EXAMPLE = (
    Message.user("Data:\n- red pens: 4\n\nHow many red pens are there?"),
    Message(content="The answer is 4."),
)


def results(history: Sequence[Message]) -> list[Message]:
    """Return the tool results since the last question."""
    start = max((place for place, message in enumerate(history) if message.role == "user"), default=0)
    return [message for message in history[start:] if message.type == "tool_result"]


def question(history: Sequence[Message]) -> str:
    """Return the last question."""
    texts = [message.content for message in history if message.role == "user" and message.type == "text"]
    return texts[-1] if texts else ""


def shape_call(history: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """Put two examples of a call before the question; without them the model babbles until its tokens are used up.

    Args:
        history: The conversation.
        tools: What the model may call; the example is of the one that has most words in common with the question.
    """
    asked = question(history)
    tool = max(tools, key=lambda candidate: len(_words(f"{candidate.name} {candidate.description}") & _words(asked)))
    hints = " ".join(
        [tool.description, *(without_words(message.content) for message in history if message.role == "system")]
    )
    topic = asked if key_phrase(asked) or not key_phrase(hints) else hints
    arguments = example_arguments(tool.parameters, topic) or {}
    return [*_example(tool.name, arguments), *_example(tool.name, arguments), Message.user(asked)]


def shape_answer(history: Sequence[Message]) -> list[Message]:
    """Put the results as plain lines before the question, after examples; without results, keep what was said of late.

    JSON makes the model ramble, and results in their own role are lost on it.
    """
    found = results(history)
    if not found:
        return _recent(history)
    calls = {message.id: message for message in history if message.type == "tool_call"}
    data = "\n".join(_lines(message, calls.get((message.query or {}).get("call", ""))) for message in found)
    examples = [*_LIST_EXAMPLE, *(_VALUE_EXAMPLE if "\n" not in data else ())]
    return [*examples, Message.user(f"Data:\n{data[:_ROOM]}\n\n{question(history)}")]


def _recent(history: Sequence[Message]) -> list[Message]:
    kept: list[Message] = []
    room = _ROOM
    for message in reversed([message for message in history if message.type == "text" and message.content]):
        room -= len(message.content)
        if room < 0 and kept:
            break
        kept.insert(0, message)
    return kept


def _example(name: str, arguments: Mapping[str, Any]) -> list[Message]:
    asked = f"{' and '.join(map(str, arguments.values())) or name}?"
    call = Message(type="tool_call", query={"tool": name, "id": "0", "args": arguments})
    result = Message(role="tool", type="tool_result", content="ok", query={"tool": name, "id": "0", "call": call.id})
    return [Message.user(asked), call, result, Message(content="Done.")]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{3,}", text.lower()))


def _lines(result: Message, call: Message | None) -> str:
    """Lay out a JSON array or object as one line for each object; a single value is said with what was asked for."""
    try:
        value = orjson.loads(result.content)
    except orjson.JSONDecodeError:
        value = result.content
    if isinstance(value, list):
        return "\n".join(f"- {_plain(item)}" for item in value)
    if isinstance(value, dict) or "\n" in result.content or call is None:
        return f"- {_plain(value)}"
    arguments = (call.query or {}).get("args") or {}
    return f"- {_plain([*arguments.values()]) or 'result'}: {value}"


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if not isinstance(value, dict):
        return str(value)
    first, *rest = value.items() or [("", "")]
    return f"{_plain(first[1])}: {', '.join(_named(name, item) for name, item in rest)}"


def _named(name: str, value: Any) -> str:
    return f"{value} {name}" if isinstance(value, int | float) else f"{name} {_plain(value)}"
