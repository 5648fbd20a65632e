"""What a user sends: one message, or several that are one prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from .errors import ConfigError, MessageError
from .hooks import lane_of
from .message import Message, clean_text, odd_field
from .protocols import Stage, Stream

Prompt: TypeAlias = str | Message | Sequence[str | Message]

SENDABLE = frozenset({"text", "image", "file", "data"})  # a call or a stop from outside would pass for the model's
# What the runtime itself says in `query`; a stored message that is sent again leaves it behind.
_OURS = frozenset({"lane", "interrupt", "parts", "part_of", "feedback", "approval", "decision", "call"})
_OURS |= {"parent", "path", "cut"}
_OWN_KEYS = "streamagent:"  # how client keys begin that users cannot give
ASIDE = ("approval", "cancel")  # types of what a user says about a run, which may stand behind its end
PARTS_LIMIT = 100  # messages of one prompt, which are stored in one transaction and held in memory together


def as_prompt(item: Prompt) -> list[Message]:
    """Make messages of what is sent; several are one prompt.

    The first then says in `query.parts` how many there are, and a digest of the others, so that a client key stands for
    all of them; the others name the first in `query.part_of`.

    Raises:
        MessageError: There is none, there are too many, or one is not a whole message that a user may send.
    """
    items = [item] if isinstance(item, str | Message) or not isinstance(item, Sequence) else item
    if not 1 <= len(items) <= PARTS_LIMIT:
        raise MessageError(f"a prompt is 1 to {PARTS_LIMIT} messages, not {len(items)}")
    first, *rest = map(as_message, items)
    if not rest:
        return [first]
    if len({message.id for message in (first, *rest)}) <= len(rest):
        raise MessageError("two messages of a prompt have the same id; each message is sent once")
    digest = hashlib.sha256(b"\n".join(map(_substance, rest))).hexdigest()
    parts = {"count": len(items), "digest": digest}
    return [
        replace(first, query={**(first.query or {}), "parts": parts}),
        *(replace(message, query={**(message.query or {}), "part_of": first.id}) for message in rest),
    ]


def as_message(item: object) -> Message:
    """Make a message of a text, or check one; what only the runtime may say in its `query` is left out.

    Raises:
        MessageError: It is not a whole message that a user may send.
    """
    if isinstance(item, str):
        return Message.user(clean_text(item))
    if not isinstance(item, Message):
        raise MessageError(f"what is sent to a session is text or a Message, not {item!r:.80}")
    if odd := odd_field(item):
        raise MessageError(f"message field {odd!r} cannot be {getattr(item, odd)!r:.80}")
    if item.role not in ("user", "system") or item.type not in SENDABLE or item.more:
        raise MessageError(
            f"what is sent to a session is a whole message of role 'user' or 'system' and of type "
            f"{', '.join(sorted(SENDABLE))}; not {item!r:.80}"
        )
    query = {key: value for key, value in (item.query or {}).items() if key not in _OURS} or None
    return replace(item, content=clean_text(item.content), query=query, session=None, sequence=None)


def as_key(client_key: str | None) -> str | None:
    """Check a client key of a user.

    Raises:
        ConfigError: It is no text, or one that only the runtime may use.
    """
    if not isinstance(client_key, str | None):
        raise ConfigError(f"client_key is text, not {client_key!r:.80}")
    if client_key is not None and client_key.startswith(_OWN_KEYS):
        raise ConfigError(f"client keys that begin with {_OWN_KEYS!r} are the runtime's own, not {client_key!r:.80}")
    return client_key


def own_key(client_key: str) -> str:
    """Make a client key of the runtime's own, which none of a user's can equal."""
    return _OWN_KEYS + client_key


def part_of(message: Message) -> str | None:
    """Return the id of the message that it is sent with, when that is another one."""
    first = (message.query or {}).get("part_of")
    return first if isinstance(first, str) else None


def may_go_on(stop: Message) -> bool:
    """Tell whether the same run may go on behind a final stop: it may after an interruption."""
    return (stop.query or {}).get("cut") == "interrupted"


def answer_to(prompt: Message) -> Stage:
    """Make a stage that ends rows which begin with a prompt where that is answered, and the next one comes.

    Steering before the last word is part of the answer, and so is what follows a pause, and steering after an
    interruption.
    """

    async def stage(stream: Stream) -> Stream:
        answered = interrupted = False
        async for message in stream:
            query = message.query or {}
            said = message.role in ("user", "system") and message.type not in ASIDE
            another = said and "feedback" not in query and prompt.id not in (message.id, part_of(message))
            if another and (answered or (interrupted and lane_of(message) == "prompt")):
                return
            yield message
            if message.is_final:
                interrupted = query.get("cut") == "interrupted"
                answered = answered or not (interrupted or query.get("reason") == "paused")

    return stage


def _substance(message: Message) -> bytes:
    substance = [message.role, message.type, message.content, message.query]
    return json.dumps(substance, sort_keys=True, default=str).encode()  # escaped to ASCII, whatever is in it
