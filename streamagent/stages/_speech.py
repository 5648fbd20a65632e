"""What is said of a call while it runs: progress, pieces of the result, the result."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from typing import Any, Self

from anyio import BrokenResourceError, from_thread

from streamagent.calls import Output
from streamagent.message import Message, clean_text, new_id

from ._outbox import Outbox


class Speech:
    """The messages of one call, and the way that they take.

    Args:
        call: The call.
        outbox: Where they go, until this is left.
        announce: Say also when it starts and ends.
    """

    __slots__ = ("_announces", "_call", "_outbox", "_result_id", "_thread", "opened")

    def __init__(self, call: Message, outbox: Outbox, *, announce: bool) -> None:
        self._call = call
        self._outbox: Outbox | None = outbox
        self._announces = announce
        self._result_id = new_id()
        self._thread = threading.get_ident()
        self.opened = False
        outbox.speakers += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._outbox is not None:
            self._outbox.speakers -= 1
            self._outbox = None

    async def send(self, message: Message) -> None:
        """Show a message, unless the call is over."""
        if self._outbox is not None:
            with suppress(BrokenResourceError):  # the stage has gone; the outcome is stored all the same
                await self._outbox.send(message)

    async def announce(self, state: str, content: str = "", **more: Any) -> None:
        """Say that it starts or ends, to whoever wants to know."""
        if self._announces:
            await self.send(self._progress(state, content, **more))

    def report(self, text: str) -> None:
        """Show what a tool says of its progress, from whatever thread it does; dropped when nobody keeps up."""
        if threading.get_ident() != self._thread:
            from_thread.run_sync(partial(self.report, text))
        elif self._outbox is not None:
            self._outbox.offer(self._progress("update", clean_text(text)))

    def fragment(self, text: str) -> Message:
        """Make a piece of the result that is still open; the first one says which call it answers."""
        query = None if self.opened else {**self._answer(is_error=False), "streamed": True}
        self.opened = True
        return Message(id=self._result_id, role="tool", type="tool_result", content=text, query=query, more=True)

    def result(self, output: Output, **known: Any) -> Message:
        """Make the result, or its end; `known` is what its query says besides, as far as there is something."""
        known = {"details": output.details or None, **known}
        query = self._answer(is_error=output.is_error) | {key: value for key, value in known.items() if value}
        return Message(id=self._result_id, role="tool", type="tool_result", content=output.content, query=query)

    def _answer(self, *, is_error: bool) -> dict[str, Any]:
        asked = self._call.query or {}
        return {"tool": asked.get("tool"), "id": asked.get("id"), "call": self._call.id, "is_error": is_error}

    def _progress(self, state: str, content: str, **more: Any) -> Message:
        query = {**self._answer(is_error=False), "state": state, **more}
        return Message(role="tool", type="progress", content=content, query=query)
