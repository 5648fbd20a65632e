"""What the workers of the fleet's tests answer with: `streamagent worker tests/fleet/clerk.py`.

A prompt says how many turns with calls its run takes, such as `3 …`. Each effect is a line of the file `$EFFECTS`,
written when the tool begins, before anything else can go wrong.
"""

import json
import os
import random

import anyio

from streamagent import Agent, Message, tool
from streamagent.calls import ToolContext
from streamagent.message import new_id

PACE = float(os.environ.get("PACE", "0.08"))  # seconds between two pieces of text
WORK = float(os.environ.get("WORK", "0.2"))  # seconds that a tool takes


def note(name, context):
    line = {
        "session": context.session,
        "call": context.idempotency_key.rpartition(":")[2],
        "tool": name,
        "fence": context.fence,
        "attempt": context.attempt,
        "pid": os.getpid(),
    }
    file = os.open(os.environ["EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.close(file)


@tool
async def ship(context: ToolContext) -> str:
    """Ship something: twice would be once too often."""
    note("ship", context)
    await anyio.sleep(WORK)
    return "shipped"


@tool(retry_safe=True)
async def look(context: ToolContext) -> str:
    """Look something up, as often as you like."""
    note("look", context)
    await anyio.sleep(WORK)
    return "found"


class Clerk:
    """Calls as many times as the prompt says, then answers."""

    name = "clerk"

    async def stream(self, context, **options):
        rows = [message async for message in context]
        asked = max(number for number, row in enumerate(rows) if row.role == "user")
        done = len({row.query["call"] for row in rows[asked:] if row.type == "tool_result"})
        id_ = new_id()
        for piece in ("Let ", "me ", "see. "):
            await anyio.sleep(PACE)
            yield Message(id=id_, content=piece, more=True)
        yield Message(id=id_)
        if done < 2 * int(rows[asked].content.split()[0]):
            for name in random.sample(["ship", "look"], 2):
                yield Message(type="tool_call", content="{}", query={"tool": name, "id": new_id(), "args": {}})
            yield Message.stop("tool_calls")
        else:
            yield Message.stop("stop")


agent = Agent(Clerk(), tools=[ship, look])


def choose(session):
    """Choose by the session, so that the store is what the command was told."""
    return agent
