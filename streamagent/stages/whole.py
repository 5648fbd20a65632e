"""`whole`: messages in one piece, for stages that need to see all of a message at once."""

from __future__ import annotations

from streamagent.errors import ConfigError, MessageTooLarge
from streamagent.message import Message, fold
from streamagent.protocols import Stage, Stream

MAX_CHARS = 16 * 1024 * 1024  # more than any model's answer; a larger tool result belongs in a file


def whole(*, max_chars: int = MAX_CHARS) -> Stage:
    """Pass each message on when it is complete, in the order in which they complete.

    What is still incomplete when the stream ends is passed on as it is, with `more=True`.

    Args:
        max_chars: Characters that all incomplete messages may hold together.

    Raises:
        ConfigError: `max_chars` is below 1.
        MessageTooLarge: From the stage, when they hold more.
    """
    if not max_chars >= 1:
        raise ConfigError(f"whole holds 1 character or more, not {max_chars}")

    async def stage(stream: Stream) -> Stream:
        parts: dict[str, list[Message]] = {}
        held = 0
        async for fragment in stream:
            if not fragment.more and fragment.id not in parts:
                yield fragment
                continue
            parts.setdefault(fragment.id, []).append(fragment)
            held += len(fragment.content)
            if held > max_chars:
                raise MessageTooLarge(f"whole() holds {held} characters, its limit is {max_chars}; raise max_chars")
            if not fragment.more:
                [message] = fold(parts.pop(fragment.id))
                held -= len(message.content)
                yield message
        for group in parts.values():
            for message in fold(group):
                yield message

    return stage
