"""What the tests of the contract share: messages to write, and rows in short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from streamagent.message import Message, afold
from streamagent.protocols import Store

KIB64 = 64 * 1024
LONG = 1000.0  # seconds: a lag that does not end within a test


def text(content: str, **fields: Any) -> Message:
    """Make a text message of the assistant."""
    return Message(content=content, **fields)


def call_and_result() -> tuple[Message, Message]:
    """Make a call and its result."""
    call = Message(type="tool_call", content="{}", query={"tool": "stock", "id": "call_1", "args": {}})
    result = Message(role="tool", type="tool_result", content="15", query={"tool": "stock", "call": call.id})
    return call, result


async def rows(store: Store, session: str = "s", **span: Any) -> list[Message]:
    """Return a session's messages, whole."""
    return await afold(store.read(session, **span))


async def contents(store: Store, session: str = "s", **span: Any) -> list[str]:
    """Return their contents."""
    return [message.content for message in await rows(store, session, **span)]


async def fill(store: Store, *messages: Message, session: str = "s") -> int:
    """Write messages as a new writer; return its fence."""
    fence = await store.acquire(session)
    await store.write(session, messages, fence=fence)
    return fence


def in_fork(messages: Sequence[Message], session: str = "f") -> list[Message]:
    """Return what a fork reads of its parent's messages."""
    return [replace(message, session=session) for message in messages]
