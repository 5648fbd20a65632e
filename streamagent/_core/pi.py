"""What programs made for pi know: messages in its shape, and lifecycle events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Literal

from streamagent.message import Message, fold

Shape = Mapping[str, Any]
EventType = Literal[
    "agent_start",
    "turn_start",
    "message_start",
    "message_update",
    "message_end",
    "tool_execution_start",
    "tool_execution_update",
    "tool_execution_end",
    "turn_end",
    "agent_end",
]


# Our reasons to stop in pi's five words; `agent_end` names those that it has no word for.
REASONS: Final[Mapping[str, str]] = {
    "stop": "stop",
    "tool_calls": "toolUse",
    "length": "length",
    "error": "error",
    "aborted": "aborted",
}
_FAILED: Final[Mapping[str, str]] = {"content_filter": "error", "deadline": "aborted", "ended": "aborted"}


def user_message(message: Message) -> Shape:
    """Shape a whole message of the user: its text, or an image or a file as the one block of its content."""
    query = message.query or {}
    content: Any = message.content
    if message.type != "text":
        known = {"data": query.get("data"), "url": query.get("url"), "name": query.get("name")}
        present = {key: value for key, value in known.items() if value}
        content = [{"type": message.type, "mimeType": query.get("mime") or "", **present}]
    return {"role": "user", "content": content, "timestamp": timestamp(message.created_at)}


def assistant_message(began: datetime, fragments: Sequence[Message], stop: Message | None = None) -> Shape:
    """Shape an answer, or what there is of it.

    Args:
        began: When it began.
        fragments: Its text, reasoning and calls.
        stop: What closed it; `None` while it streams: no failure, nothing counted.
    """
    query = (stop.query if stop else None) or {}
    provider, slash, model = str(query.get("model") or "").partition("/")
    reason = stop_reason(fragments, query)
    failure = {"errorMessage": _failure(query)} if reason in ("error", "aborted") else {}
    return {
        "role": "assistant",
        "content": [block(message) for message in fold(fragments)],
        "api": "streamagent",
        "provider": provider,
        "model": model if slash else provider,
        "usage": _usage(query.get("usage") or {}),
        "stopReason": reason,
        **failure,
        "timestamp": timestamp(began),
    }


def stop_reason(fragments: Sequence[Message], query: Mapping[str, Any]) -> str:
    """Say in pi's words why an answer ended; a limit is `toolUse` when calls ran before it, else `length`."""
    reason = query.get("reason", "stop")
    runs = any(message.type == "tool_call" and not is_refused(message) for message in fragments)
    return REASONS.get(reason) or _FAILED.get(reason) or ("toolUse" if runs else "length")


def is_refused(call: Message) -> bool:
    """Tell whether the answer broke off before its call could run."""
    return (call.query or {}).get("invalid") == "truncated"


def block(message: Message) -> Shape:
    """Shape a text, a reasoning or a call as a block of content; the arguments of an open call are {}."""
    query = message.query or {}
    if message.type == "text":
        return {"type": "text", "text": message.content}
    if message.type == "reasoning":
        return {"type": "thinking", "thinking": message.content, **_signature(query.get("provider") or {})}
    arguments = {} if message.more else query.get("args") or {}
    return {"type": "toolCall", "id": query.get("id"), "name": query.get("tool"), "arguments": arguments}


def output(text: str, query: Mapping[str, Any]) -> Shape:
    """Shape what a tool says."""
    details = {"details": query["details"]} if "details" in query else {}
    return {"content": [{"type": "text", "text": text}], **details}


def tool_result(message: Message) -> Shape:
    """Shape a whole result."""
    query = message.query or {}
    return {
        "role": "toolResult",
        "toolCallId": query.get("id") or "",
        "toolName": query.get("tool") or "",
        **output(message.content, query),
        "isError": bool(query.get("is_error")),
        "timestamp": timestamp(message.created_at),
    }


def timestamp(moment: datetime) -> int:
    """Return milliseconds since 1970."""
    return int(moment.timestamp() * 1000)


def _signature(provider: Mapping[str, Any]) -> Shape:
    """Take the signature of thinking; of several signed blocks in one message none holds for the whole."""
    signed = provider.get("thinking_blocks") or []
    if len(signed) != 1:
        return {}
    if signed[0].get("type") == "redacted_thinking":
        return {"thinkingSignature": signed[0].get("data"), "redacted": True}
    return {"thinkingSignature": signed[0].get("signature")}


def _failure(query: Mapping[str, Any]) -> str:
    reason = query.get("reason")
    said = (query.get("error") or {}).get("message")
    return str(said or ("Operation aborted" if reason == "aborted" else f"The run ended: {reason}"))


def _usage(usage: Mapping[str, Any]) -> Shape:
    """Count as pi does: `input` is what was neither read from nor written to the provider's cache."""
    details = usage.get("prompt_tokens_details") or {}
    read = details.get("cached_tokens") or usage.get("cache_read_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or details.get("cache_creation_tokens") or 0
    asked, answered = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return {
        "input": max(0, asked - read - written),
        "output": answered,
        "cacheRead": read,
        "cacheWrite": written,
        "totalTokens": usage.get("total_tokens", asked + answered),
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": usage.get("cost", 0)},
    }


class Partial(Mapping[str, Any]):
    """An answer as far as it had come, built when it is looked at: a thousand fragments cost a thousand pairs.

    Args:
        began: When the answer began.
        fragments: Its fragments; more may be appended, none is taken away.
    """

    __slots__ = ("_began", "_count", "_fragments")

    def __init__(self, began: datetime, fragments: Sequence[Message]) -> None:
        self._began = began
        self._fragments = fragments
        self._count = len(fragments)

    def build(self) -> Shape:
        """Build the message."""
        return assistant_message(self._began, self._fragments[: self._count])

    def __getitem__(self, key: str) -> Any:
        return self.build()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.build())

    def __len__(self) -> int:
        return len(self.build())

    def __repr__(self) -> str:
        return f"Partial({self.build()!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A lifecycle event; the fields that its type does not have are `None`. `to_dict` has pi's names of them.

    Args:
        type: What happened.
        message: Of `message_…` and `turn_end`: the message in pi's shape. While an answer streams it is what had come
            until then, and is built when it is looked at.
        assistant_message_event: Of `message_update`: `type` (`text_delta`, …), `contentIndex`, and `delta`, `content`
            or `toolCall`; `partial` is the message.
        tool_call_id: Of `tool_execution_…`: the call's id, as the model knows it.
        tool_name: The tool.
        args: Of `tool_execution_start` and `_update`: the arguments as the model wrote them.
        partial_result: Of `tool_execution_update`: what there is of the result, or what the tool says of its progress.
        result: Of `tool_execution_end`: the result.
        is_error: Whether it failed.
        tool_results: Of `turn_end`: its `toolResult` messages, in call order.
        messages: Of `agent_end`: all messages of the run.
        reason: Of `agent_end`: why the run ended, when the last answer does not say so: a limit, or a cancelled tool.
            The one field that pi does not have.
    """

    type: EventType
    message: Shape | None = None
    assistant_message_event: Shape | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    args: Shape | None = None
    partial_result: Shape | None = None
    result: Shape | None = None
    is_error: bool | None = None
    tool_results: Sequence[Shape] | None = None
    messages: Sequence[Shape] | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with pi's names, as `toolCallId`."""
        present = {name: getattr(self, name) for name in _NAMES}
        return {_NAMES[name]: _plain(value) for name, value in present.items() if value is not None}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


_NAMES: Final = {item.name: _camel(item.name) for item in fields(Event)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        value = value.build() if isinstance(value, Partial) else value
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
