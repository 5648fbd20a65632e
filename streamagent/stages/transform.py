"""`transform`: a function over the whole context, as pi's `transform_context` and `convert_to_llm`."""

from __future__ import annotations

from collections.abc import Callable

from streamagent.hooks import Maybe, settled
from streamagent.message import Message, fold
from streamagent.protocols import Stage, Stream


def transform(function: Callable[[list[Message]], Maybe[list[Message]]], /) -> Stage:
    """Give a plain or async function the whole context, and the model what it returns.

    The whole context is in memory meanwhile; a stage of one's own need not hold it.

    Args:
        function: Messages in, messages out.
    """

    async def stage(stream: Stream) -> Stream:
        for message in await settled(function(fold([fragment async for fragment in stream]))):
            yield message

    return stage
