"""What a run finds that begins in a session: what an earlier one left is closed, or gone on with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace

from ._core.closing import close_all
from .approvals import undecided
from .errors import StoreError
from .hooks import lane_of
from .lineage import close_children, settle_tree
from .message import Message
from .prompts import ASIDE, may_go_on
from .protocols import Store
from .records import NOTHING, CallRecord, Unfinished
from .settle import Cause
from .turn import SHORTER

CRASHES = 3  # owners in a row that died in a run, after which nobody tries again

_REDONE = "Not executed: the run broke off before the answer was complete, and it was taken anew."


@dataclass(slots=True)
class Cut:
    """How far a run had come when its process died, by its rows.

    Args:
        first: Sequence of its first row.
        prompt: Id of the prompt for which it was begun.
        asked: Its last row, when that is what a user said.
        due: A turn comes next: what it is about was all there.
        turns: How many turns were over.
        granted: How many of them when it got all turns that it may take.
        shrunk: A turn was taken once more since then because its context was too long.
        turn: Sequence of the first row of the turn that was under way.
        kept: Some of its calls have their results.
        attempt: The last attempt at that turn.
        decisions: What was decided about its calls, by the call's message id.
        broken: Its last turn was cut, and it may have ended with that.
        over: Nothing is under way.
    """

    first: int = 0
    prompt: str = ""
    asked: Message | None = None
    due: bool = False
    turns: int = 0
    granted: int = 0
    shrunk: bool = False
    turn: int | None = None
    kept: bool = False
    attempt: int = 0
    decisions: dict[str, Message] = field(default_factory=dict)
    broken: bool = False
    over: bool = True

    def pass_by(self, row: Message) -> None:
        """Take the next row of the session."""
        if row.type == "stop":
            self._end_turn(row)
        elif row.role in ("user", "system") and row.type not in ASIDE:
            self._admit(row)
        elif row.role == "assistant":
            self.turn, self.asked, self.broken = self.turn or row.sequence, None, False
            self.attempt = max(self.attempt, row.attempt)
        elif (row.query or {}).get("cut") != "resumed":
            self.asked, self.due, self.kept = None, False, self.turn is not None
            if row.type == "approval" and "decision" in (row.query or {}):
                self.decisions[str((row.query or {}).get("call"))] = row

    def _end_turn(self, stop: Message) -> None:
        query = stop.query or {}
        self.turn = self.asked = None
        self.kept = False
        self.due = query.get("cut") == "resumed"
        if self.due:
            return
        self.attempt = 0
        self.broken = may_go_on(stop)
        shorter = query.get("again") == SHORTER
        self.shrunk |= shorter
        self.turns += not (self.broken or shorter)
        if query.get("reason") == "paused":
            run = query.get("run") or {}
            self.turns, self.first = run.get("turns", self.turns), run.get("since", self.first - 1) + 1
        elif stop.is_final and not self.broken:
            self.over = True

    def _admit(self, row: Message) -> None:
        if self.over or (self.broken and lane_of(row) == "prompt"):
            self.__init__(first=row.sequence or 0, prompt=row.id, over=False)  # type: ignore[misc]
        self.turn, self.attempt, self.asked, self.due, self.broken = None, 0, row, True, False
        if not self.turns or lane_of(row) == "follow_up":
            self.granted, self.shrunk = self.turns, False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """How a run finds its session.

    Args:
        left: What is open: calls that wait for an approval, and those of a run that goes on.
        rows: What was added to close the rest, to be shown.
        cut: The run that goes on, if its process died.
        started: What is known of its calls that were begun, by their message id.
    """

    left: Unfinished = NOTHING
    rows: Sequence[Message] = ()
    cut: Cut | None = None
    started: Mapping[str, CallRecord] = field(default_factory=dict)


async def look_back(store: Store, session: str) -> Cut:
    """Read how far the last run of a session had come."""
    cut = Cut()
    async with aclosing(store.read(session)) as rows:
        async for row in rows:
            cut.pass_by(row)
    return cut


async def is_left_open(store: Store, session: str) -> bool:
    """Tell whether somebody has to go on with a run; perhaps, when the store cannot say so."""
    with suppress(StoreError):
        left = await store.unfinished(session)
        return left.left_open
    return True


async def find(  # noqa: PLR0913 - all by keyword
    store: Store,
    session: str,
    *,
    fence: int,
    asks: bool,
    repeatable: Collection[str],
    model: str,
    left: Unfinished | None = None,
) -> Found:
    """Make a session ready for a run: close what an earlier one left, or say how to go on with it.

    Args:
        store: Where the session lives.
        session: The session.
        fence: The run's.
        asks: The run has a prompt of its own. A run that was cut is over then; without one it is gone on with, unless
            its process has died too often in it.
        repeatable: Names of the tools whose calls do no harm when they are run again.
        model: Name of what answers; a turn that stands without its end is taken for this one's.
        left: What was left, when that is known.
    """
    left = await store.unfinished(session) if left is None else left
    if (left.approvals or not left.at_rest) and await store.waiting([session], "cancel"):
        return await _closed(store, session, fence, "aborted", left)  # it was meant for this run: none has begun since
    if left.approvals and asks and await undecided(store, session, left.approvals):
        gone = Found() if left.at_rest or left.forked else await _closed(store, session, fence, "crashed", left)
        found = await _closed(store, session, fence, "superseded", await store.unfinished(session))
        return replace(found, rows=[*gone.rows, *found.rows])
    if left.at_rest:
        return Found(left=left)
    if left.crashes >= CRASHES:
        return await _closed(store, session, fence, "poison", left)
    if asks or left.forked:
        found = await _closed(store, session, fence, "crashed", left)
        return replace(found, left=left)
    cut = await look_back(store, session)
    if cut.over:  # but for what was open of it: there is nothing to go on with
        return await _closed(store, session, fence, "crashed", left)
    started = {record.call: record for record in await store.calls(session)}
    harmful = [call for call in left.calls if call.id in started and (call.query or {}).get("tool") not in repeatable]
    rows = _closings(left, cut, harmful, model)
    await close_children(store, session, *((row.query or {})["call"] for row in rows if row.type == "tool_result"))
    if rows:
        sequences = await store.write(session, rows, fence=fence)
        rows = [replace(row, session=session, sequence=number) for row, number in zip(rows, sequences, strict=True)]
    for row in rows:
        cut.pass_by(row)
    return Found(left=await store.unfinished(session), rows=rows, cut=cut, started=started)


async def _closed(store: Store, session: str, fence: int, cause: Cause, left: Unfinished) -> Found:
    return Found(rows=await settle_tree(store, session, fence=fence, cause=cause, left=left))


def _closings(left: Unfinished, cut: Cut, harmful: Sequence[Message], model: str) -> list[Message]:
    """Close the turn that was under way: another attempt supersedes what it said, and its calls are not run.

    If one of them has its result, or may have had a harmful effect, the turn stands as it is, and is gone on with.
    """
    calls = [] if cut.turn is None else [call for call in left.calls if (call.sequence or 0) >= cut.turn]
    if cut.turn is None or cut.kept or any(call in harmful for call in calls):
        rows = close_all(left.open, (), {}, cause="crashed", text=_REDONE)
        return rows if cut.turn is None else [*rows, Message.stop("tool_calls", cut="crashed", model=model)]
    rows = close_all(left.open, calls, {}, cause="resumed", text=_REDONE)
    error = {"kind": "interrupted", "message": "the run broke off before the answer", "retryable": True}
    return [*rows, replace(Message.stop("aborted", cut="resumed", error=error), attempt=cut.attempt)]
