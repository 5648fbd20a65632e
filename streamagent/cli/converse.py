"""One prompt and its answer; a signal cuts it."""

from __future__ import annotations

from streamagent.driver import RunReply
from streamagent.message import Message

from .exits import FAILURE
from .interrupts import Interrupts
from .render import View, stop_note


async def converse(answer: RunReply, view: View, interrupts: Interrupts, *, idle: str = "") -> int:
    """Show an answer, and return the exit code that it deserves; what was said before a signal is kept.

    Args:
        answer: The answer.
        view: What shows it.
        interrupts: What a signal does.
        idle: What to say when there was nothing to answer.
    """
    async with answer as reply:
        stop = None
        with interrupts.cut():
            stop = await _show(reply, view)
        stop = await _show(reply, view) or stop  # what is left of an answer that was cut: how it was closed
        view.close()
        if stop is None and idle:
            view.note(idle)
    return _exit_code(stop)


async def _show(reply: RunReply, view: View) -> Message | None:
    stop: Message | None = None
    async for message in reply:
        show(message, view)
        if message.type == "stop" and not message.path:
            stop = message
    return stop


def show(message: Message, view: View) -> None:
    """Show the next fragment, and why an answer ended that did not end well."""
    view.show(message)
    if message.type == "stop" and not message.path and (note := stop_note(message)):
        view.note(note, style="red" if _exit_code(message) else "yellow")


def _exit_code(stop: Message | None) -> int:
    reason = (stop.query or {}).get("reason") if stop else None
    return FAILURE if reason in ("error", "aborted") else 0
