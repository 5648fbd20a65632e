"""A session driven from the main thread, so that Ctrl-C means: cut this answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anyio.from_thread import BlockingPortal, start_blocking_portal

from streamagent.agent import Agent
from streamagent.driver import RunReply
from streamagent.message import Message
from streamagent.session import Session

from .exits import FAILURE, INTERRUPTED
from .render import View, stop_note


class Conversation:
    """A session in the event loop of another thread.

    Args:
        portal: The way into that thread.
        session: The open session.
        view: Where answers are shown.
    """

    def __init__(self, portal: BlockingPortal, session: Session, view: View) -> None:
        self._portal = portal
        self._session = session
        self._view = view

    def ask(self, prompt: str) -> int:
        """Ask, show the answer, and return the exit code that it deserves. Ctrl-C cuts it and keeps what was said."""
        reply = self._session.ask(prompt)
        stop = self._portal.start_task_soon(_show, reply, self._view)
        try:
            return _exit_code(stop.result())
        except KeyboardInterrupt:
            self._portal.call(reply.cancel)
            stop.result()
            return INTERRUPTED


@contextmanager
def open_conversation(agent: Agent, session: str, view: View) -> Iterator[Conversation]:
    """Open an agent's session in a thread of its own; on leaving, what still runs is cut."""
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(agent.session(session)) as opened,
    ):
        yield Conversation(portal, opened, view)


async def _show(reply: RunReply, view: View) -> Message | None:
    stop: Message | None = None
    async with reply:
        async for message in reply:
            view.show(message)
            if message.type == "stop":
                stop = message
                if note := stop_note(message):
                    view.note(note, style="red" if _exit_code(message) else "yellow")
        view.close()
    return stop


def _exit_code(stop: Message | None) -> int:
    reason = (stop.query or {}).get("reason") if stop else None
    return FAILURE if reason in ("error", "aborted") else 0
