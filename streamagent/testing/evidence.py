"""What a test gathers of a session: its rows, and what was logged outside of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from streamagent.message import Message
from streamagent.records import Usage

ASIDE = frozenset({"approval", "cancel"})  # types of rows that a user causes, and no model reads


@dataclass(slots=True, kw_only=True)
class Effect:
    """One execution of a tool, as the tool itself wrote it down.

    Args:
        call: Message id of the call.
        tool: The tool's name.
        args: What it got.
        outcome: `running`, `returned`, `raised` or `cancelled`.
        session: Where it ran.
        revoked: Ids of the grants that had been revoked when it began.
    """

    call: str
    tool: str
    args: Mapping[str, Any]
    outcome: str = "running"
    session: str = "s"
    revoked: AbstractSet[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class Shown:
    """What one viewer received.

    Args:
        texts: Content by message id.
        closed: Ids of the messages whose last fragment it saw.
        lagged: Ids of the messages that may reach the table later than the viewer.
        ended: It read to the end.
        behind: Its writer was killed or lost the lease, so that the table may lack what was shown within the lag.
        key: Of its prompt.
        prompt: What it asked.
        end: Id of the first final stop after its prompt.
        beyond: Id of the first prompt of somebody else after that.
    """

    texts: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    lagged: set[str] = field(default_factory=set)
    ended: bool = False
    behind: bool = False
    key: str | None = None
    prompt: str = ""
    end: str | None = None
    beyond: str | None = None

    def take(self, message: Message) -> None:
        """Note a fragment; what a sub-agent says is stored in its own session."""
        if message.path:
            return
        new = message.id not in self.texts
        closing = new and not message.content and cut_of(message) not in (None, "open") and message.type != "stop"
        if message.type == "progress" or closing:  # the last word about what an earlier run had begun
            return
        if new and self.end and is_prompt(message) and not lane_of(message):
            self.beyond = self.beyond or message.id
        self.texts[message.id] = self.texts.get(message.id, "") + message.content
        if message.sequence is None:
            self.lagged.add(message.id)
        if not message.more:
            self.closed.add(message.id)
        if self.end is None and is_final(message) and self.prompt in self.texts.values():
            self.end = message.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A writer handed over a row, and was not refused."""

    owner: int | str
    fence: int
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A session's rows, and what was logged outside of it.

    Args:
        rows: In stored order, whole.
        at_rest: No run is under way or was left open.
        before: The rows at an earlier check.
        inbox: What waits.
        requests: What would be sent for these rows, by the model's name.
        effects: What the tools did; `None` when nobody wrote that down.
        shown: What viewers saw.
        writes: Who wrote, in the order of writing.
        accepted: Prompts that the store took: content by key; without a key the content is its own.
        cancels: Of each cancel that returned: the run's fence, and how many writes there were.
        gone: Ids of rows that were deleted; who reads late may still be shown them.
        inherited: How many rows a fork has from the session that it was forked from.
        crashed: A process was killed, or lost its lease.
        streamed: Tools whose results open when they begin, in whatever order.
        gated: Tools that need an approval.
        retry_safe: Tools that may run once more after a crash.
        reconciled: Tools that know after a crash what came of a call, whoever did it.
        reread: What was read after some of the rows, by their sequence.
        usage: What the store sums up.
        widest: Bytes of the largest fragment in which a row was read.
        foreign: What other tenants read under this session's id.
        secrets: Texts that nobody may be told.
        logs: What was logged, or said elsewhere.
        damage: What is wrong with the file in which it is.
        max_turns: How many turns a prompt or follow-up may take.
        max_calls: How many calls a prompt may take.
    """

    rows: Sequence[Message]
    at_rest: bool = True
    before: Sequence[Message] = ()
    inbox: Sequence[Message] = ()
    requests: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    effects: Sequence[Effect] | None = None
    shown: Sequence[Shown] = ()
    writes: Sequence[Write] = ()
    accepted: Mapping[str, str] = field(default_factory=dict)
    cancels: Sequence[tuple[int, int]] = ()
    gone: AbstractSet[str] = frozenset()
    inherited: int = 0
    crashed: bool = False
    streamed: frozenset[str] = frozenset()
    gated: frozenset[str] = frozenset()
    retry_safe: frozenset[str] = frozenset()
    reconciled: frozenset[str] = frozenset()
    reread: Mapping[int, Sequence[Message]] = field(default_factory=dict)
    usage: Usage | None = None
    widest: int = 0
    foreign: Sequence[Message] = ()
    secrets: AbstractSet[str] = frozenset()
    logs: Sequence[str] = ()
    damage: str = ""
    max_turns: float = math.inf
    max_calls: float = math.inf

    @property
    def settled(self) -> Sequence[Message]:
        """The rows of the runs that are over."""
        if self.at_rest:
            return self.rows
        return self.rows[: max((n for n, row in enumerate(self.rows, 1) if is_final(row)), default=0)]

    @property
    def results(self) -> dict[str, Message]:
        """The results, by the id of their call."""
        return {fact(row, "call"): row for row in self.rows if row.type == "tool_result" and not row.more}


def fact(row: Message, key: str) -> Any:
    """Return what a row's query says."""
    return (row.query or {}).get(key)


def cut_of(row: Message) -> Any:
    """Return why a row is not whole: `open`, or what it was cut by."""
    return "open" if row.more else fact(row, "cut")


def lane_of(row: Message) -> Any:
    """Return on which way a prompt came, if it was not asked."""
    return fact(row, "lane") or ("feedback" if fact(row, "feedback") else None)


def is_prompt(row: Message) -> bool:
    """Tell what is said to the model."""
    return row.role in ("user", "system") and row.type not in ASIDE


def is_request(row: Message) -> bool:
    """Tell a request to approve, a decision or an end of one."""
    return row.type == "approval"


def is_final(row: Message) -> bool:
    """Tell a run's last word."""
    if row.type != "stop" or cut_of(row) == "resumed":
        return False
    return fact(row, "reason") != "tool_calls" and not fact(row, "again")


def told(row: Message | None) -> str:
    """Show a row in one line."""
    if row is None:
        return "nothing"
    return f"{row.sequence} {row.id[-6:]} {row.role}/{row.type} {row.content!r:.60} {dict(row.query or {})}"


def turns_of(rows: Sequence[Message]) -> Iterator[list[Message]]:
    """Give what the model said at once, with its stop and the results of its calls."""
    turn: list[Message] = []
    over = False
    for row in rows:
        said = row.role == "assistant" and row.type != "stop"
        if is_prompt(row) or (said and over):
            if turn:
                yield turn
            turn, over = [], False
        if not is_prompt(row):
            turn.append(row)
            over = over or row.type in ("stop", "tool_result")
    if turn:
        yield turn


def attempts_of(stop: Message) -> Iterator[Mapping[str, Any]]:
    """Give what a stop says of its answer, and of the attempts that failed before it."""
    yield stop.query or {}
    yield from fact(stop, "attempts") or ()


def tokens_of(told: Mapping[str, Any]) -> float:
    """Return how many tokens a stop, or one of its attempts, says that it took."""
    usage = told.get("usage") or {}
    for names in (("total_tokens",), ("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")):
        if any(name in usage for name in names):
            counted: float = sum(usage.get(name, 0) for name in names)
            return counted
    return 0


def goes_on(stop: Message) -> bool:
    """The run pauses there."""
    return bool(fact(stop, "reason") == "paused")
