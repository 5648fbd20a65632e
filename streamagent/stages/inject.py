"""`inject`: what the model should know for this prompt, put into its context without a call."""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal

from streamagent._core.window import is_prompt
from streamagent.errors import ConfigError, MessageError
from streamagent.message import Message, fold
from streamagent.protocols import RunContext, Stage, Stream

logger = logging.getLogger("streamagent")

Injected = str | Message | Iterable[Message] | None


def inject(
    source: Callable[[Message, RunContext], Injected | Awaitable[Injected]],
    *,
    role: Literal["user", "system"] = "user",
    where: Literal["before_prompt", "after_system"] = "before_prompt",
    required: bool = False,
) -> Stage:
    """Ask a source what belongs into the context of a prompt: retrieved documents, live data, the state of an app.

    It is asked at each model turn, with the last prompt (of several in a row the last text), and what it gives is not
    stored. A context without a prompt is passed on as it is.

    Args:
        source: A function of `(prompt, run)`, asynchronous or one that does not block, that returns text, messages,
            or `None` for nothing.
        role: Whose words a text is; data from outside is safer as the user's.
        where: Before the last prompt, so that everything before that stays the same for the provider's prefix cache;
            or behind the system messages, for which the whole context is held.
        required: Raise what the source raises; otherwise it is logged and the context goes on without.

    Raises:
        ConfigError: `source` is no function, `role` or `where` is unknown.
    """
    _check(source, role, where)

    async def stage(stream: Stream, run: RunContext) -> Stream:
        context = _Context()
        async for fragment in stream:
            if not context.add(fragment):
                yield fragment
            while context.older and where == "before_prompt":
                yield context.older.popleft()
        given = await given_for(context.prompt(), run)
        for message in (*given, *context.older, *context.latest):
            yield message

    async def given_for(prompt: Message | None, run: RunContext) -> list[Message]:
        if prompt is None:
            return []
        try:
            given = source(prompt, run)
            return _messages(await given if inspect.isawaitable(given) else given, role)
        except Exception:
            if required:
                raise
            logger.warning(
                "session %s: inject's source failed; the context goes on without", run.session, exc_info=True
            )
            return []

    return stage


def _check(source: object, role: str, where: str) -> None:
    if not callable(source) or role not in ("user", "system") or where not in ("before_prompt", "after_system"):
        raise ConfigError(
            "inject takes a function of (prompt, run), role 'user' or 'system' and where 'before_prompt' or "
            f"'after_system', not {source!r:.80}, {role!r} and {where!r}"
        )


class _Context:
    """What is behind the system messages, in two parts: what came before the last prompt, and from it on."""

    def __init__(self) -> None:
        self.older: deque[Message] = deque()
        self.latest: list[Message] = []
        self._asking = False

    def add(self, fragment: Message) -> bool:
        """Take a fragment; `False` for the system messages at the head, which stay where they are."""
        if fragment.role == "system" and not self.older and not self.latest:
            return False
        if is_prompt(fragment) and not self._asking:
            self.older.extend(self.latest)
            self.latest.clear()
        self._asking = is_prompt(fragment) or (self._asking and fragment.role == "system")
        (self.latest.append if self.latest or self._asking else self.older.append)(fragment)
        return True

    def prompt(self) -> Message | None:
        """Return the last prompt; when several were given in a row, the last text of them."""
        prompts = fold(filter(is_prompt, self.latest))
        texts = [message for message in prompts if message.type == "text"]
        return next(reversed(texts or prompts), None)


def _messages(given: Injected, role: Literal["user", "system"]) -> list[Message]:
    if isinstance(given, str):
        return [Message(role=role, content=given)] if given else []
    messages = [given] if isinstance(given, Message) else list(given or ())
    for message in messages:
        if not isinstance(message, Message):
            raise MessageError(f"inject's source returned {message!r:.80}; it returns text, messages or None")
    return messages
