"""`Lineage`: where a run stands in the tree of runs that sub-agents make, and what it has from those above it."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection
from contextlib import aclosing
from dataclasses import dataclass, field

from .message import Message
from .protocols import RunContext, Stage, Store
from .records import ID_LIMIT, Unfinished
from .settle import Cause, settle

_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # the id of a call's message
_CHILD = re.compile(rf"(?P<asker>.+):{_UUID}:[1-9][0-9]*", re.DOTALL)


@dataclass(slots=True)
class Tree:
    """What all runs of one tree share.

    Args:
        max_depth: How deep sub-agents may be nested.
        max_children: How many of them may be at work at once.
        live: How many are.
        left: They are left to other processes, to go on there: nothing of them is closed.
    """

    max_depth: int = 3
    max_children: int = 8
    live: int = 0
    left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Where a run stands.

    Args:
        tree: The tree.
        path: Ids of the calls that led to it, outermost first; empty at the root.
        deadline: When the run above ends, on anyio's clock, in seconds.
        bounds: Limits of the runs above, as stages that share their counts.
    """

    tree: Tree = field(default_factory=Tree)
    path: tuple[str, ...] = ()
    deadline: float = math.inf
    bounds: tuple[Stage, ...] = ()

    @classmethod
    def root(cls, *, max_depth: int, max_children: int) -> Lineage:
        """Begin a tree."""
        return cls(tree=Tree(max_depth, max_children))

    def child(self, run: RunContext, call: str) -> Lineage:
        """Say where a sub-agent stands that a call of this run starts."""
        bounds = (*self.bounds, *run.bounds)
        return Lineage(tree=self.tree, path=(*self.path, call), deadline=run.deadline, bounds=bounds)

    def refusal(self) -> str | None:
        """Say why no sub-agent may be started here, if that is so."""
        tree = self.tree
        if len(self.path) >= tree.max_depth:
            return f"Not started: sub-agents may be nested {tree.max_depth} deep, no deeper. Do it without one."
        if tree.live >= tree.max_children:
            return f"Not started: {tree.live} sub-agents are at work already, and no more may be. Wait for one to end."
        return None


def child_id(session: str, call: str, number: int) -> str:
    """Name the session of a call's sub-agent: the same one when the call is run again.

    Args:
        session: The caller's session.
        call: The call's message id.
        number: Which sub-agent of the call, from 1.
    """
    name = f"{session}:{call}:{number}"
    return name if len(name) <= ID_LIMIT else f"{short_name(session)}:{call}:{number}"


def short_name(session: str) -> str:
    """Give what stands for a session in the names of its sub-agents' sessions, where they would be too long."""
    return hashlib.sha256(session.encode()).hexdigest()


def askers(sessions: Collection[str]) -> dict[str, str]:
    """Find the sessions of sub-agents, by their names, and which of these sessions asked each."""
    named = {session: found["asker"] for session in sessions if (found := _CHILD.fullmatch(session))}
    known = dict(zip(sessions, sessions, strict=True))
    if any(len(name) == len(short_name("")) for name in named.values()):
        known |= {short_name(session): session for session in sessions}
    return {session: known[name] for session, name in named.items() if name in known}


async def settle_tree(
    store: Store, session: str, *, fence: int, cause: Cause = "crashed", left: Unfinished | None = None
) -> list[Message]:
    """Close what a run that is gone left open, after the sessions of sub-agents that were at work.

    In this order, a process that dies in between leaves a call that is open, for which the next one does the same.

    Args:
        store: Where the session lives.
        session: The session.
        fence: The writer's fence.
        cause: Why the run is over; its sub-agents' runs are `crashed`.
        left: What it left open, when that is known.

    Returns:
        The rows that were added to this session.
    """
    left = await store.unfinished(session) if left is None else left
    await close_children(store, session, *(call.id for call in left.calls))
    return await settle(store, session, fence=fence, cause=cause, left=left)


async def close_children(store: Store, session: str, *calls: str) -> None:
    """Close the sessions of sub-agents that these calls had started; done before the calls themselves are closed."""
    for call in calls:
        number = 1
        while (left := await store.unfinished(child := child_id(session, call, number))).last is not None:
            if not left.at_rest:
                await settle_tree(store, child, fence=await store.acquire(child), left=left)
            number += 1


async def is_child(store: Store, session: str) -> bool:
    """Tell whether a session is a sub-agent's; only one that is named like it is looked at."""
    if not _CHILD.fullmatch(session):
        return False
    async with aclosing(store.read(session, until=1)) as rows:
        async for row in rows:
            return "parent" in (row.query or {})
    return any("parent" in (message.query or {}) for message in await store.inbox(session))
