"""What a store tells of a session: plain records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from .errors import ConfigError
from .message import Message

ID_LIMIT = 256  # characters; an id is a key in every row


def check_id(id: str) -> None:  # noqa: A002 - the field's name
    """Refuse what is no id of a session.

    Raises:
        ConfigError: It is empty, too long, or not printable.
    """
    if not isinstance(id, str) or not 0 < len(id) <= ID_LIMIT or not id.isprintable():
        raise ConfigError(f"a session id is 1 to {ID_LIMIT} printable characters, not {id!r:.80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """What a store tells of a session as a whole.

    Args:
        id: Its id.
        created_at: When its first message was made, or it was forked, UTC.
        modified_at: When something of it was written last, UTC.
        messages: How many it shows.
        parent: Session that keeps the first of them, of a fork.
        running: An owner that is alive holds it.
        size: Bytes of the content in its own keeping, in UTF-8; `None` where sessions are listed.
    """

    id: str
    created_at: datetime
    modified_at: datetime
    messages: int
    parent: str | None = None
    running: bool = False
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a store knows of a message beside what it says.

    Args:
        id: The message's.
        waits: For another row: a call for its result, a request for a decision, a grant for its end.
        client_key: Under which it was sent.
    """

    id: str
    waits: bool = False
    client_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What model turns took, summed up.

    Args:
        turns: Answers of a model, also failed and cut ones.
        tool_calls: Calls that it made.
        tokens: Tokens, as providers count them.
        cost: Money, in the currency of whoever priced it (US dollars in LiteLLM's price map).
        uncounted: Turns whose tokens nobody counted; they stand in `tokens` as 0.
    """

    turns: int = 0
    tool_calls: int = 0
    tokens: float = 0
    cost: float = 0.0
    uncounted: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            turns=self.turns + other.turns,
            tool_calls=self.tool_calls + other.tool_calls,
            tokens=self.tokens + other.tokens,
            cost=self.cost + other.cost,
            uncounted=self.uncounted + other.uncounted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds sessions: a process that runs them, as long as it says so.

    Args:
        id: Its name, unique among all that share the store.
        ttl: How long it is taken for alive after it last said so, in seconds, by the database's clock.
    """

    id: str
    ttl: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """What the ledger of effects knows of a call whose result is not stored.

    Args:
        call: Id of the call's message.
        attempts: How often its tool was about to run.
        outcome: What came of it, when that is known: its result, as it will be stored.
    """

    call: str
    attempts: int
    outcome: Message | None = None


Restored = tuple[Message, Mark | None] | CallRecord
"""A piece of a session that is put back: a message, or a fragment of one, with its mark; or what is known of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """What an interrupted run left behind in a session.

    Args:
        open: Messages whose last fragment was never written, without their content, in order of sequence.
        calls: Complete calls without a result, in order of sequence.
        approvals: Requests to approve some of these calls, in order of sequence; a decision may wait in the inbox.
        grants: Decisions that approve further calls, and were not revoked.
        last: The session's last message, without content when that is long; `None` in an empty session. Decisions and
            each `cancel` are left out: they may stand behind the end of a run.
        forked: The session is a fork, and nothing was written to it since.
        crashes: How many owners in a row have died while they held the session, the last one among them.
    """

    open: Sequence[Message]
    calls: Sequence[Message]
    approvals: Sequence[Message] = ()
    grants: Sequence[Message] = ()
    last: Message | None
    forked: bool = False
    crashes: int = 0

    @property
    def at_rest(self) -> bool:
        """The last run came to its end, if only because its last calls wait for an approval."""
        if self.open or self.cut or not (self.last is None or self.last.is_final):
            return False
        return not self.approvals or (self.last is not None and (self.last.query or {}).get("reason") == "paused")

    @property
    def left_open(self) -> bool:
        """Somebody has to go on with its run, or to close it."""
        return not (self.at_rest or self.forked)

    @property
    def paused(self) -> bool:
        """The last run came to its end because calls wait for an approval, and they still do."""
        return self.at_rest and bool(self.approvals)

    @property
    def cut(self) -> Sequence[Message]:
        """The calls that wait for no approval: whoever ran them is gone."""
        waiting = {(request.query or {}).get("call") for request in self.approvals}
        return [call for call in self.calls if call.id not in waiting]


NOTHING = Unfinished(open=(), calls=(), last=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a session stands.

    Args:
        left: What is left open in it.
        inbox: The messages that wait, oldest first.
    """

    left: Unfinished
    inbox: Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A session that was acquired for a run.

    Args:
        fence: What the run's writes must carry.
        prompt: What was put into the inbox, as it is stored; `None` when nothing was.
        standing: How the session stands, behind that.
    """

    fence: int
    prompt: Message | None
    standing: Standing
