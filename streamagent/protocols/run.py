"""`RunContext`: the run, as its stages see it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from streamagent.calls import Child, Output
from streamagent.message import Message
from streamagent.records import CallRecord

from .store import Store
from .streams import Source, Stream


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
        again: Set by a stage behind its `yield` of a turn's `stop`: a message with which the turn is taken again. That
            stop has `query.again`, which makes it no last word; after a crash the stage sets this before it reads.
        bounds: Stages that a stage wants to stand first in the runs of sub-agents, too: limits that they share.
        decided: Calls that were made before, by their message id: they pass by next, or the decisions for which they
            waited.
        started: What is known of the calls that a run began whose process died, by their message id.
        since: Of a run that goes on after a pause, an interruption or a crash: its rows so far are those after this
            sequence.
    """

    session: str
    deadline: float
    outcomes: dict[str, Message]
    again: Message | None
    bounds: list[Stage]
    decided: dict[str, Message]
    started: Mapping[str, CallRecord]
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

    async def start_call(self, call: str) -> int:
        """Commit that a call's tool is about to run; return which attempt that is, from 1."""
        ...

    async def finish_call(self, call: str, result: Message) -> None:
        """Commit what came of a call, before its result passes the stages."""
        ...

    async def start_child(self, child: Child) -> Output:
        """Let a sub-agent answer; see `ToolContext.start`.

        Raises:
            ConfigError: The run is not a session's, or there is no plan.
        """
        ...


Stage = Callable[[Stream], Source] | Callable[[Stream, RunContext], Source]
