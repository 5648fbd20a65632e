"""What calls say on their way to the reader."""

from __future__ import annotations

import pytest

from streamagent.message import Message
from streamagent.stages._outbox import SIZE, Outbox
from streamagent.stages._speech import Speech

pytestmark = pytest.mark.anyio
CALL = Message(type="tool_call", query={"tool": "t", "id": "c1", "args": {}})


async def test_what_is_said_after_a_call_is_over_is_dropped():
    """A tool that was abandoned says nothing more, though other calls of the batch still do."""
    outbox = Outbox()
    other = Speech(CALL, outbox, announce=False)
    with Speech(CALL, outbox, announce=False) as speech:
        await speech.send(Message(content="in time"))
    await speech.send(Message(content="late"))
    speech.report("late")
    await other.send(Message(content="of another"))

    assert [(await outbox.receive()).content for _ in range(2)] == ["in time", "of another"]
    assert not outbox.is_over
    with other:
        pass
    assert outbox.is_over


async def test_progress_is_dropped_when_nobody_keeps_up():
    """A tool is not held back by what it says of its progress."""
    outbox = Outbox()
    with Speech(CALL, outbox, announce=False) as speech:
        for number in range(SIZE + 1):
            speech.report(str(number))

    assert [(await outbox.receive()).content for _ in range(SIZE)] == [str(number) for number in range(SIZE)]
    assert outbox.is_over


async def test_what_is_said_to_nobody_is_dropped():
    """The stage has gone: who speaks is not told, and does not wait."""
    outbox = Outbox()
    with Speech(CALL, outbox, announce=False) as speech:
        outbox.close(drop=True)
        await speech.send(Message())

    assert outbox.is_over
