"""Streams of messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from streamagent.message import Message

Stream = AsyncGenerator[Message, None]
Source = AsyncIterator[Message]
