"""Models and tools for tests of the column: scripted, on any backend, without a clock."""

from __future__ import annotations

import math
from dataclasses import replace

import anyio
from anyio.lowlevel import checkpoint

from streamagent.message import Message, new_id
from streamagent.tools.function import tool
from tests.evidence import Evidence
from tests.invariants import check


def call(tool_name, call_id="c1", **args):
    """A complete tool call."""
    return Message(type="tool_call", content="{}", query={"tool": tool_name, "id": call_id, "args": args})


def text(*pieces):
    """A text message in fragments; the last one closes it."""
    id_ = new_id()
    return [*(Message(id=id_, content=piece, more=True) for piece in pieces), Message(id=id_)]


class ScriptedModel:
    """Answers turn by turn from a script; a turn without a stop at its end hangs there, as a stalled provider does.

    Args:
        turns: The messages of each turn, in the order in which they are asked for; the last one is repeated.
    """

    name = "scripted"

    def __init__(self, *turns):
        self.turns = list(turns)
        self.contexts = []
        self.tools = []
        self.closed = 0
        self.hangs = anyio.Event()

    async def stream(self, context, *, tools=(), settings=None, deadline=math.inf):
        self.contexts.append([message async for message in context])
        self.tools.append(tools)
        script = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        ids = {item.id: new_id() for item in script}  # a script may be played several times
        try:
            for item in script:
                await checkpoint()
                yield replace(item, id=ids[item.id])
            if not script or script[-1].type != "stop":
                self.hangs.set()
                await anyio.sleep_forever()
        finally:
            self.closed += 1


@tool
async def stock(product: str) -> int:
    """Units of a product in stock."""
    return 15


def answer(*pieces):
    """A turn that answers in text."""
    return [*text(*pieces), Message.stop("stop", usage={"total_tokens": 3})]


def calls(*messages):
    """A turn that calls tools."""
    return [*messages, Message.stop("tool_calls")]


async def rows(store, session="s"):
    """A session's rows, in short: (sequence, role, type, content)."""
    return [(row.sequence, row.role, row.type, row.content) async for row in store.read(session)]


async def check_rows(store, session="s", **more):
    """Assert the invariants of a session at rest; `more` is further evidence (`invariants.Evidence`)."""
    stored = [row async for row in store.read(session)]
    check(Evidence(rows=stored, **more))
    return stored
