"""`buffer`: let the source run ahead of a slow consumer."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from anyio import BrokenResourceError, create_memory_object_stream
from anyio.streams.memory import MemoryObjectSendStream

from streamagent.duties import mark
from streamagent.errors import ConfigError
from streamagent.message import Message
from streamagent.protocols import RunContext, Stage, Stream


@dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception


def buffer(size: int) -> Stage:
    """Read the source in a task of its own, at most `size` messages ahead of the consumer.

    Upstream of it a `yield` means "buffered", no longer "delivered": stand it between stages that do not need that. A
    `Pipeline` takes it neither before `tool_dispatch` nor between that and `persist`.

    Args:
        size: How many messages may wait; 0 hands each over directly.

    Raises:
        ConfigError: `size` is no number of messages.
    """
    if not isinstance(size, int) or size < 0:
        raise ConfigError(f"buffer size is 0 or more messages, not {size!r}")

    async def stage(stream: Stream, run: RunContext) -> Stream:
        outbox, inbox = create_memory_object_stream[Message | _Failed](size)
        run.tasks.start_soon(_pump, stream, outbox)
        with inbox:
            async for item in inbox:
                if isinstance(item, _Failed):
                    raise item.error
                yield item

    return mark(stage, "run_ahead")


async def _pump(stream: Stream, outbox: MemoryObjectSendStream[Message | _Failed]) -> None:
    with outbox, suppress(BrokenResourceError):  # the reader has left
        try:
            async for message in stream:
                await outbox.send(message)
        except Exception as error:  # noqa: BLE001 - foreign code upstream; it is raised again where it is read
            await outbox.send(_Failed(error))
