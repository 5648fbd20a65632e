"""Leaving runs to other processes, when this one is to end."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from anyio import create_task_group, move_on_after

from .driver import RunReply

logger = logging.getLogger("streamagent")

GRACE = 10.0  # seconds: most answers are given by then, and what stops a process waits for 30
BORDER = 5.0  # seconds for a run to come to its next border, which is a turn or a batch of tools away


async def hand_over(active: Mapping[str, RunReply], grace: float) -> None:
    """Wait for runs to end, then have them end at their next border, then where they are.

    Args:
        active: The runs of a process, as they come and go.
        grace: How long they may take to their end, in seconds.
    """
    logger.info("ending: no run is begun any more", extra={"runs": len(active)})
    roots = {session: reply for session, reply in active.items() if reply.is_root}
    with move_on_after(grace):
        await _wait(roots.values())
        return
    logger.info("leaving runs to others at their next border", extra={"runs": sum(map(_is_active, roots.values()))})
    for reply in roots.values():
        reply.leave()
    with move_on_after(BORDER):
        await _wait(roots.values())
        return
    async with create_task_group() as tasks:
        for session, reply in roots.items():
            tasks.start_soon(_leave, session, reply)


def _is_active(reply: RunReply) -> bool:
    return not reply.done


async def _wait(replies: Iterable[RunReply]) -> None:
    for reply in replies:
        await reply.wait()


async def _leave(session: str, reply: RunReply) -> None:
    """End a run where it is; one that fails to end does not keep the others."""
    try:
        await reply.cut("handover")
    except Exception:
        logger.exception("session %s: its run did not end well", session)
