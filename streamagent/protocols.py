"""The protocols between the column (pipeline, run, session, runtime) and what stands beside it."""

from __future__ import annotations

import math
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from .calls import Child, Output, ToolSpec
from .message import Message
from .records import SessionInfo, Unfinished, Usage

Stream = AsyncGenerator[Message, None]
Source = AsyncIterator[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Options of a model call; `None` leaves the provider's default.

    Args:
        temperature: Sampling temperature.
        top_p: Nucleus sampling mass.
        max_tokens: Longest answer, in tokens.
        seed: Sampling seed, where the provider has one.
        stop: Texts at which the model stops.
        tool_choice: `auto`, `none`, `required`, or a tool's name.
        reasoning_effort: `minimal`, `low`, `medium` or `high`.
        idle_timeout: Longest silence between two events of the provider, in seconds.
        timeout: Longest time for the whole call, with its retries, in seconds.
        retries: How often a call is repeated while nothing was yielded.
        think_tags: Take a leading `<think>` block of the text as reasoning.
        starts_in_think: The model's template has opened the think block already.
        response_schema: JSON Schema of an object that the answer shall be, for providers that can be told.
        extra: Further parameters, passed to the provider as they are.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: Sequence[str] | None = None
    tool_choice: str | None = None
    reasoning_effort: str | None = None
    idle_timeout: float = 120.0
    timeout: float = 600.0
    retries: int = 3
    think_tags: bool = False
    starts_in_think: bool = False
    response_schema: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


DEFAULT_SETTINGS = ModelSettings()


class Model(Protocol):
    """Something that turns a context into an answer, both streams of messages."""

    name: str

    def stream(
        self,
        context: AsyncIterable[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        settings: ModelSettings = DEFAULT_SETTINGS,
        deadline: float = math.inf,
    ) -> Stream:
        """Answer `context`.

        Args:
            context: The conversation, read once, while the request is built.
            tools: What the model may call.
            settings: Options of this call.
            deadline: When to give up, on anyio's clock (`anyio.current_time`), in seconds.

        Yields:
            Fragments of the answer; the last message is a `stop`, also on every expected failure.
        """
        ...


class Store(AbstractAsyncContextManager["Store"], Protocol):
    """Where sessions live. Every method is safe to call from many tasks at once.

    Writes of one session are ordered as they were handed over. A caller that is cancelled while it waits for a write
    does not stop the write. All methods may raise `StoreError` subclasses.
    """

    async def acquire(self, session: str) -> int:
        """Become the session's only writer; return the fence that later writes must carry."""
        ...

    async def write(self, session: str, fragments: Sequence[Message], *, fence: int) -> list[int]:
        """Commit fragments in one transaction, after everything that `write_soon` holds of this session.

        A fragment with an unknown id opens a message: it gets the next sequence. Content is appended, queries are
        merged (later keys win), `more=False` closes. A `tool_result` with `query.call` answers that call.

        Returns:
            The sequence of each fragment's message.

        Raises:
            LeaseLost: The fence is not the session's current one.
            MessageError: The message was closed already.
        """
        ...

    def write_soon(self, session: str, fragment: Message, *, fence: int, lag: float) -> int:
        """Take a fragment that is committed within `lag` seconds, or with the session's next `write`.

        Returns:
            How many bytes of this session wait to be committed; above the caller's limit it should `flush`.

        Raises:
            StoreError: What an earlier fragment of this session failed with; the fragment is not taken.
        """
        ...

    async def flush(self, session: str) -> None:
        """Return when everything that `write_soon` took of this session is committed."""
        ...

    async def enqueue(
        self, session: str, message: Message, *, client_key: str | None = None, rest: Sequence[Message] = ()
    ) -> Message:
        """Put a message into the session's inbox.

        Args:
            session: The session.
            message: What waits there.
            client_key: Names it for its sender.
            rest: What waits right behind it, from the same transaction on.

        Returns:
            The stored `message`; the earlier one, with its sequence if it was admitted, when `client_key` was used
            before with the same role, type, content and query.

        Raises:
            ConflictError: `client_key` was used before with another message.
        """
        ...

    async def inbox(self, session: str) -> list[Message]:
        """Return the messages that wait, oldest first."""
        ...

    async def admit(
        self, session: str, *, fence: int, limit: int = 1, ids: Collection[str] | None = None
    ) -> list[Message]:
        """Give the oldest waiting messages their sequence and return them; with `ids`, only these messages."""
        ...

    async def waiting(self, sessions: Collection[str], type: str) -> set[str]:  # noqa: A002 - the field's name
        """Tell which of these sessions have a message of this type in their inbox; asked often, so it is cheap."""
        ...

    async def unfinished(self, session: str) -> Unfinished:
        """Return what a run that ended badly left open."""
        ...

    def read(self, session: str, *, after: int = 0, until: int | None = None) -> Stream:
        """Read messages by sequence, in pages, with bounded memory.

        Args:
            session: The session; an unknown one is empty.
            after: Sequence after which to start.
            until: Last sequence to read; `None` for the end.

        Yields:
            Whole messages; large ones as fragments of at most 64 KiB. One that is still open ends with `more=True`.
        """
        ...

    async def tally(self, session: str) -> dict[tuple[str, str], int]:
        """Count the session's messages by (role, type)."""
        ...

    async def usage(self, session: str | None, *, since: datetime | None = None) -> Usage:
        """Sum up what the stored turns took, from their stops and calls; what a fork shares is its parent's.

        Args:
            session: The session; `None` for all of the tenant's.
            since: Count what was made at this time or later; `None` for everything.
        """
        ...

    def sessions(self) -> AsyncGenerator[SessionInfo, None]:
        """List the sessions, the latest modified first."""
        ...

    async def fork(self, session: str, new: str, *, at: int | None = None) -> None:
        """Begin the session `new` with the rows of another one, which goes on by itself; no content is copied.

        The rows are read as the fork's own, `session` and sequences 1 to `at` included, and it continues at `at + 1`
        with a message whose `prev` is the row it was forked at. A message that is open has in the fork the content it
        has now, and `cut: "forked"`; a call whose result comes after `at` is one of the fork's `unfinished` calls.

        Args:
            session: The session to fork.
            new: The fork's id.
            at: Sequence of the last row that it gets; `None` for all.

        Raises:
            ConfigError: The session has no messages, or none with the sequence `at`.
            ConflictError: `new` has messages already.
        """
        ...

    async def delete(self, session: str) -> bool:
        """Delete a session and its rows; return whether there was one. Its running writer gets `LeaseLost`.

        Raises:
            ConflictError: It has forks, which share its rows; delete them first.
        """
        ...


class Tasks(Protocol):
    """Where a stage starts background work; it ends with the run."""

    def start_soon(self, func: Callable[..., Coroutine[Any, Any, Any]], *args: Any, name: object = None) -> Any:
        """Start `func(*args)`; an exception in it ends the run with that exception."""
        ...


class RunContext(Protocol):
    """The run, as a stage sees it that takes `(stream, run)`.

    Args:
        session: Id of the session.
        tasks: Where background work goes.
        deadline: When the run ends, on anyio's clock, in seconds.
        outcomes: Results of finished calls that were not yielded yet, by the call's message id: they are stored
            however the run ends.
        cut_usage: Tokens of the answer that is under way, for a stage that ends it: an estimate; `None` between turns.
        again: Set by a stage behind its `yield` of a turn's `stop`: a message with which the turn is taken again.
        bounds: Stages that a stage wants to stand first in the runs of sub-agents, too: limits that they share.
        decided: Calls that waited for an approval, by their message id: the decisions about them pass by next.
        since: Of a run that goes on after a pause or an interruption: its rows so far are those after this sequence.
    """

    session: str
    deadline: float
    outcomes: dict[str, Message]
    again: Message | None
    bounds: list[Stage]
    decided: dict[str, Message]
    since: int | None

    @property
    def cut_usage(self) -> Mapping[str, Any] | None:
        """Tokens of the answer that is under way."""
        ...

    @property
    def tasks(self) -> Tasks:
        """Where background work goes."""
        ...

    @property
    def store(self) -> Store:
        """The session's store.

        Raises:
            ConfigError: The pipeline was opened without one.
        """
        ...

    @property
    def fence(self) -> int:
        """What the run's writes must carry."""
        ...

    async def start_child(self, child: Child) -> Output:
        """Let a sub-agent answer; see `ToolContext.start`.

        Raises:
            ConfigError: The run is not a session's, or there is no plan.
        """
        ...


Stage = Callable[[Stream], Source] | Callable[[Stream, RunContext], Source]
