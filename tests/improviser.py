"""A model for the state machine, which plays the turns that it is given."""

from __future__ import annotations

from dataclasses import replace

from anyio.lowlevel import checkpoint

from streamagent.message import Message, new_id
from streamagent.testing.checking import provider_requests
from streamagent.testing.lint import SIGNED, lint


def messages(spec):
    """Write a turn out."""
    signature = {"thinking_blocks": [SIGNED + spec["model"].rpartition("/")[2]]}
    if spec["reasoning"]:
        yield Message(type="reasoning", content="hm", query={"provider": signature})
    id_ = new_id()
    for number in range(spec["text"]):
        yield Message(id=id_, content=f"text {number} ", more=number + 1 < spec["text"])
    for number, name in enumerate(spec["calls"]):
        opened = Message(type="tool_call", content="{", more=True)
        yield opened
        query = {"tool": name, "id": f"c{number}", "args": {"edited": False}}
        yield replace(opened, content='"edited": false}', more=False, query=query)
    if spec["end"] == "error":
        yield Message.stop("error", error={"kind": "provider_error", "message": "no", "retryable": False})
    elif spec["end"] != "silent":
        well = "tool_calls" if spec["calls"] else "stop"
        yield Message.stop("length" if spec["end"] == "length" else well, model=spec["model"])


class Improviser:
    """A model that plays the turns which it was given last, then a plain answer."""

    name = "scripted"

    def __init__(self, gate):
        self.turns = []
        self._gate = gate

    async def stream(self, context, *, tools=(), settings=None, deadline=None):
        given = [message async for message in context]
        wrong = [text for item in provider_requests(given).items() for text in lint(*item)]
        assert not wrong, (wrong, given)
        plain = {"model": "scripted", "reasoning": False, "text": 1, "calls": [], "end": "well"}
        spec = self.turns.pop(0) if self.turns else plain
        for message in messages(spec):
            await checkpoint()
            if message.type == "stop" and spec["end"] == "waits":
                await self._gate.wait()
            if message.type == "stop" and spec["end"] == "raises":
                raise RuntimeError("a bug")
            yield message
