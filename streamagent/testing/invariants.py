"""The invariants of a session, checked from its rows and from what a test logged, never through the code under test.

Each `i…` function is one invariant: it yields what is wrong and with which row. `check` asks them all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from streamagent.message import Message

from .evidence import (
    ASIDE,
    Effect,
    Evidence,
    Write,
    attempts_of,
    cut_of,
    fact,
    goes_on,
    is_final,
    is_prompt,
    is_request,
    lane_of,
    tokens_of,
    told,
    turns_of,
)
from .lint import Problems, lint
from .surroundings import i10, i14, i17, i20

ENDED_WELL = frozenset({"stop", "tool_calls"})
TURN_ENDS = frozenset({"stop", "tool_calls", "length", "content_filter", "error"})  # what a model's answer ends with


def check(evidence: Evidence) -> None:
    """Check all invariants.

    Args:
        evidence: What is known of a session; what it does not have is not checked.

    Raises:
        AssertionError: Some do not hold; the text names each, says what is wrong, and shows the rows.
    """
    problems = [f"{i.__name__.upper()}: {text}" for i in INVARIANTS for text in i(evidence)]
    if problems:
        raise AssertionError("\n".join([*problems, *map(told, evidence.rows)]))


def i1(e: Evidence) -> Problems:
    """Pairing: each turn's calls have one result each, in call order, before anything else is said."""
    paused = bool(e.settled) and fact(e.settled[-1], "reason") == "paused"
    turns = [*turns_of(e.settled)]
    for turn in turns:
        asked = [row.id for row in turn if row.type == "tool_call"]
        given = [fact(row, "call") for row in turn if row.type == "tool_result"]
        if paused and turn is turns[-1]:
            waiting = {fact(row, "call") for row in turn if is_request(row)} - set(given)
            asked = [call for call in asked if call not in waiting]
        streamed = any(fact(row, "streamed") or fact(row, "tool") in e.streamed for row in turn)
        in_order = not (streamed or any(map(is_request, turn)))
        if (given if in_order else sorted(given)) != (asked if in_order else sorted(asked)):
            yield f"the calls of the turn at {told(turn[0])} are {asked}, their results answer {given}"


def i2(e: Evidence) -> Problems:
    """Sequence: 1..n without gap or double; what was final stays as it was, what was open only grows."""
    for number, row in enumerate(e.rows, 1):
        if row.sequence != number:
            yield f"row {number} has another sequence: {told(row)}"
    for id_, times in Counter(row.id for row in e.rows).items():
        if times > 1:
            yield f"{times} rows have the id {id_}"
    if len({row.session for row in e.rows}) > 1:
        yield "the rows name several sessions"
    for old, new in zip(e.before, [*e.rows, *[None] * len(e.before)], strict=False):
        if new is None or new.id != old.id or not (new == old or (old.more and new.content.startswith(old.content))):
            yield f"was {told(old)}, is {told(new)}"


def i3(e: Evidence) -> Problems:
    """Shown = stored: what a viewer saw of a row is its text, or begins it; nothing shown is missing."""
    rows = {row.id: row for row in e.rows}
    for viewer in e.shown:
        for id_, text in viewer.texts.items():
            row = rows.get(id_)
            lost = viewer.behind and id_ in viewer.lagged
            if row is None:
                if not lost and id_ not in e.gone:
                    yield f"{text!r} of {id_} was shown and is not stored"
                continue
            whole = id_ in viewer.closed or (viewer.ended and not cut_of(row))
            same = row.content == text if whole else row.content.startswith(text)
            if not same and not (lost and cut_of(row) and text.startswith(row.content)):
                yield f"shown was {text!r} of {told(row)}"


def i5(e: Evidence) -> Problems:
    """Effects: no call runs twice; `ok` means that it ran; `unknown` stands only where a process ended."""
    if e.effects is None:
        return
    ran = Counter(effect.call for effect in e.effects)
    results = e.results
    for row in e.rows:
        if row.type != "tool_call":
            continue
        result, times = results.get(row.id), ran[row.id]
        repeats = fact(row, "tool") in e.retry_safe
        if times > 1 and not (e.crashed and repeats):
            yield f"ran {times} times: {told(row)}"
        if result is None or cut_of(result) == "forked":
            continue
        denies = result.content.startswith("Not executed") and not repeats  # else an attempt is superseded as a whole
        known = fact(result, "is_error") or (e.crashed and fact(row, "tool") in e.reconciled)
        if times if denies else not (times or known):
            yield f"ran {times} times, and does not say that: {told(result)}"
        if cut_of(result) == "crashed" and not e.crashed:
            yield f"no process ended: {told(result)}"
    known = {row.id for row in e.rows} | e.gone  # who runs a session that is deleted hears of it at his next write
    for effect in e.effects:
        if effect.call not in known:
            yield f"an effect without a stored call: {effect}"


def i6(e: Evidence) -> Problems:
    """Idempotence: one row for each accepted prompt, and the same end for all who asked with its key."""
    said = Counter(row.content for row in (*e.rows, *e.inbox) if row.role == "user" and row.type not in ASIDE)
    for key, content in e.accepted.items():
        if said[content] != 1:
            yield f"{key!r}: {said[content]} rows say {content!r}"
    ends: dict[str, str] = {}
    for viewer in e.shown:
        if viewer.key and viewer.end and ends.setdefault(viewer.key, viewer.end) != viewer.end:
            yield f"{viewer.key!r} ended for one in {ends[viewer.key]}, for another in {viewer.end}"
        if viewer.key and viewer.ended and not viewer.end:
            yield f"{viewer.key!r}: one who asked read to the end and saw none"
        if viewer.prompt and viewer.beyond:
            yield f"{viewer.prompt!r}: one who asked was shown what another one asked, {viewer.beyond}"


def i7(e: Evidence) -> Problems:
    """Single writer: the fence never falls along the sequence, and has one owner."""
    opened: dict[str, Write] = {}
    owners: dict[int, int | str] = {}
    for write in e.writes:
        opened.setdefault(write.id, write)
        if owners.setdefault(write.fence, write.owner) != write.owner:
            yield f"fence {write.fence} has the owners {owners[write.fence]} and {write.owner}"
    logged = [(row, opened[row.id].fence) for row in e.rows if row.id in opened]
    for (_, earlier), (row, later) in pairwise(logged):
        if later < earlier:
            yield f"fence {later} after {earlier}: {told(row)}"


def i8(e: Evidence) -> Problems:
    """Approval: a gated call that ran was approved before, once, with these arguments."""
    decisions = [row for row in e.rows if is_request(row) and row.role == "user"]
    asked = {row.id: row for row in e.rows if is_request(row) and not fact(row, "approval")}
    expired = {fact(row, "call") for row in e.rows if fact(row, "decision") == "expired"}
    for request, times in Counter(fact(row, "approval") for row in decisions).items():
        if times > 1:
            yield f"{times} decisions about the request {request}"
    taken = [row for row in decisions if (row.sequence or 0) > e.inherited]
    results = e.results
    for effect in e.effects or ():
        ours = {row.id for row in e.rows if row.session == effect.session}
        if effect.tool not in e.gated or effect.call not in ours:
            continue
        result = results.get(effect.call)
        until = math.inf if result is None else result.sequence or 0
        if not any(_approves(row, asked, effect) and (row.sequence or 0) < until for row in taken):
            yield f"ran without an approval: {effect}"
        if effect.call in expired:
            yield f"ran when its approval had expired: {effect}"


def i9(e: Evidence) -> Problems:
    """Terminality: each run has one last word; after it comes a prompt, and no prompt comes before it."""
    rows = [row for row in e.settled if row.type not in ASIDE]
    for before, row in zip([None, *rows], rows, strict=False):
        begins = is_prompt(row) and not lane_of(row) and row.content in e.accepted.values()
        if begins and before is not None and not is_final(before) and not is_prompt(before):
            yield f"a prompt within a run: {told(row)}"
        if before is not None and is_final(before) and not is_prompt(row) and not goes_on(before):
            yield f"after the last word: {told(row)}"
    if e.at_rest and rows and not is_final(rows[-1]):
        yield f"a run without its last word: {told(rows[-1])}"


def i13(e: Evidence) -> Problems:
    """Reconnect: whoever reads on after a row gets the rest, all of it and nothing twice."""
    for after, rest in e.reread.items():
        if [*rest] != [*e.rows[after:]]:
            yield f"read after {after} come {[row.sequence for row in rest]} of {len(e.rows)} rows, or other content"


def i15(e: Evidence) -> Problems:
    """Usage: the sum is that of all attempts' last counts; what nobody counted is told as that."""
    if e.usage is None:
        return
    own = [row for row in e.rows if (row.sequence or 0) > e.inherited and row.role == "assistant"]
    called = sum(row.type == "tool_call" for row in own)
    if e.usage.tool_calls != called:
        yield f"{called} calls are stored, {e.usage.tool_calls} are summed up"
    tokens = sum(tokens_of(told) for row in own if row.type == "stop" for told in attempts_of(row))
    if e.usage.tokens != tokens:
        yield f"the stops say {tokens} tokens, {e.usage.tokens} are summed up"
    counted = sum(any("usage" in told for told in attempts_of(row)) for row in own if row.type == "stop")
    if e.usage.turns - e.usage.uncounted > counted:
        yield f"{counted} turns were counted, {e.usage.turns - e.usage.uncounted} are summed up as that"


def i16(e: Evidence) -> Problems:
    """Honesty: what was cut or failed never ends in `ok`."""
    for turn in turns_of(e.settled):
        yield from _ended_well(turn)
    for row in e.settled:
        if row.more:
            yield f"open in a run that is over: {told(row)}"
    for effect in e.effects or ():
        result = e.results.get(effect.call)
        if effect.outcome == "raised" and result is not None and not fact(result, "is_error"):
            yield f"the tool raised: {told(result)}"
    for result in e.results.values():
        if cut_of(result) and not fact(result, "is_error"):
            yield f"cut, and not an error: {told(result)}"


def i18(e: Evidence) -> Problems:
    """Cancel safety: nothing of a cancelled run is written after `cancel` has returned."""
    rows = {row.id: row for row in e.rows}
    for fence, count in e.cancels:
        for write in e.writes[count:]:
            if write.fence == fence and write.id in rows:
                yield f"written after the cancel of fence {fence}: {told(rows[write.id])}"


def i19(e: Evidence) -> Problems:
    """Budget: no prompt takes more turns or calls than the limits say."""
    turns = calls = 0
    fences = {write.id: write.fence for write in reversed(e.writes)}
    for before, row in zip([None, *e.rows], e.rows, strict=False):
        same_run = before is not None and fences.get(before.id) == fences.get(row.id)
        anew = before is not None and is_final(before) and not cut_of(before) and lane_of(row) == "steer"
        if not same_run or (is_prompt(row) and (anew or lane_of(row) not in ("steer", "feedback"))):
            turns = calls = 0
        given_up = (fact(row, "error") or {}).get("kind") == "poison"  # for an earlier process, by whoever came next
        turns += row.type == "stop" and fact(row, "reason") in TURN_ENDS and not given_up
        calls += row.type == "tool_call"
        if turns > e.max_turns or calls > e.max_calls:
            yield f"turn {turns} and call {calls} of a prompt: {told(row)}"
            return


def i4(e: Evidence) -> Problems:
    """Replayable: no provider would refuse the request."""
    for model, request in e.requests.items():
        yield from (f"{model}: {text}" for text in lint(model, request))


INVARIANTS = (i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i13, i14, i15, i16, i17, i18, i19, i20)


def _ended_well(turn: Sequence[Message]) -> Problems:
    """Find what a turn that ended well must not have."""
    stops = [row for row in turn if row.type == "stop"]
    last = max(row.attempt for row in turn)
    goes_on = any(fact(stop, "reason") == "tool_calls" for stop in stops)  # a next one may say nothing
    known = {None, "resumed", "crashed" if goes_on else None}  # of calls; the model is told that a crash cut them
    cut = [row for row in turn if row.role == "tool" and cut_of(row) not in known]
    cut += [row for row in _since_crash(turn) if row.role != "tool" and cut_of(row) and row.attempt == last]
    if cut and (not stops or (fact(stops[-1], "reason") in ENDED_WELL and not cut_of(stops[-1]))):
        yield f"a turn that ended well has {told(cut[0])}"
    for stop in stops:
        if fact(stop, "error") and fact(stop, "reason") in ENDED_WELL:
            yield f"an error that ended well: {told(stop)}"


def _since_crash(turn: Sequence[Message]) -> Sequence[Message]:
    """Leave out what stands before a stop that says that a crash cut it: what comes then is the next turn's."""
    cuts = [number for number, row in enumerate(turn, 1) if row.type == "stop" and cut_of(row) == "crashed"]
    return turn[cuts[-1] :] if cuts and len(turn) > cuts[-1] else turn


def _approves(row: Message, asked: Mapping[str, Message], effect: Effect) -> bool:
    """Tell whether a decision lets a tool do this: it is about this call, or a grant that holds for it."""
    request = asked.get(fact(row, "approval"))
    if request is None:
        return False
    always = fact(row, "always")
    if always is not None and fact(request, "tool") == effect.tool and row.id not in effect.revoked:
        covered = all(name in effect.args and effect.args[name] == value for name, value in always.items())
        if covered:
            return True
    args = {"approve": fact(request, "args"), "edit": fact(row, "args")}.get(fact(row, "decision"))
    return fact(request, "call") == effect.call and args == effect.args
