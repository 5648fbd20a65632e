"""The invariants of a session, checked from its rows and from what a test logged, never through the code under test.

Each `i…` function is one invariant: it yields what is wrong and with which row. `check` asserts them all.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from streamagent.message import Message

Problems = Iterator[str]
ENDED_WELL = frozenset({"stop", "tool_calls"})
TURN_ENDS = frozenset({"stop", "tool_calls", "length", "content_filter", "error"})  # what a model's answer ends with
ASIDE = frozenset({"approval", "cancel"})  # types of rows that a user causes, and no model reads


@dataclass(slots=True, kw_only=True)
class Effect:
    """One execution of a tool, as the tool itself wrote it down; `outcome`: running, returned, raised, cancelled."""

    call: str
    tool: str
    args: Mapping[str, Any]
    outcome: str = "running"
    session: str = "s"


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
    """

    texts: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    lagged: set[str] = field(default_factory=set)
    ended: bool = False
    behind: bool = False
    key: str | None = None
    prompt: str = ""
    end: str | None = None

    def take(self, message: Message) -> None:
        """Note a fragment."""
        unseen = message.id not in self.texts and not message.content and _cut(message) not in (None, "open")
        if message.type == "progress" or unseen:  # the last word about what an earlier run had begun
            return
        self.texts[message.id] = self.texts.get(message.id, "") + message.content
        if message.sequence is None:
            self.lagged.add(message.id)
        if not message.more:
            self.closed.add(message.id)
        if self.end is None and _final(message) and self.prompt in self.texts.values():
            self.end = message.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A writer handed over a row, and was not refused."""

    owner: int
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
        crashed: A process was killed, or lost its lease.
        streamed: Tools whose results open when they begin, in whatever order.
        gated: Tools that need an approval.
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
    crashed: bool = False
    streamed: frozenset[str] = frozenset()
    gated: frozenset[str] = frozenset()
    max_turns: float = math.inf
    max_calls: float = math.inf

    @property
    def settled(self) -> Sequence[Message]:
        """The rows of the runs that are over."""
        if self.at_rest:
            return self.rows
        return self.rows[: max((n for n, row in enumerate(self.rows, 1) if _final(row)), default=0)]

    @property
    def results(self) -> dict[str, Message]:
        """The results, by the id of their call."""
        return {_fact(row, "call"): row for row in self.rows if row.type == "tool_result" and not row.more}


def check(evidence: Evidence) -> None:
    """Assert all invariants."""
    problems = [f"{i.__name__.upper()}: {text}" for i in INVARIANTS for text in i(evidence)]
    assert not problems, "\n".join([*problems, *map(_line, evidence.rows)])


def i1(e: Evidence) -> Problems:
    """Pairing: each turn's calls have one result each, in call order, before anything else is said."""
    paused = bool(e.settled) and _fact(e.settled[-1], "reason") == "paused"
    turns = [*_turns(e.settled)]
    for turn in turns:
        asked = [row.id for row in turn if row.type == "tool_call"]
        given = [_fact(row, "call") for row in turn if row.type == "tool_result"]
        if paused and turn is turns[-1]:
            waiting = {_fact(row, "call") for row in turn if _request(row)} - set(given)
            asked = [call for call in asked if call not in waiting]
        in_order = not any(_request(row) or _fact(row, "tool") in e.streamed for row in turn)
        if (given if in_order else sorted(given)) != (asked if in_order else sorted(asked)):
            yield f"the calls of the turn at {_line(turn[0])} are {asked}, their results answer {given}"


def i2(e: Evidence) -> Problems:
    """Sequence: 1..n without gap or double; what was final stays as it was, what was open only grows."""
    for number, row in enumerate(e.rows, 1):
        if row.sequence != number:
            yield f"row {number} has another sequence: {_line(row)}"
    for id_, times in Counter(row.id for row in e.rows).items():
        if times > 1:
            yield f"{times} rows have the id {id_}"
    if len({row.session for row in e.rows}) > 1:
        yield "the rows name several sessions"
    for old, new in zip(e.before, [*e.rows, *[None] * len(e.before)], strict=False):
        if new is None or new.id != old.id or not (new == old or (old.more and new.content.startswith(old.content))):
            yield f"was {_line(old)}, is {_line(new)}"


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
            whole = id_ in viewer.closed or (viewer.ended and not _cut(row))
            same = row.content == text if whole else row.content.startswith(text)
            if not same and not (lost and _cut(row) and text.startswith(row.content)):
                yield f"shown was {text!r} of {_line(row)}"


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
        if times > 1:
            yield f"ran {times} times: {_line(row)}"
        if result is None or _cut(result) == "forked":
            continue
        if not _fact(result, "is_error") and times != 1:
            yield f"says ok and ran {times} times: {_line(result)}"
        if _cut(result) == "crashed" and not e.crashed:
            yield f"no process ended: {_line(result)}"
    known = {row.id for row in e.rows}
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


def i7(e: Evidence) -> Problems:
    """Single writer: the fence never falls along the sequence, and has one owner."""
    opened: dict[str, Write] = {}
    owners: dict[int, int] = {}
    for write in e.writes:
        opened.setdefault(write.id, write)
        if owners.setdefault(write.fence, write.owner) != write.owner:
            yield f"fence {write.fence} has the owners {owners[write.fence]} and {write.owner}"
    logged = [(row, opened[row.id].fence) for row in e.rows if row.id in opened]
    for (_, earlier), (row, later) in pairwise(logged):
        if later < earlier:
            yield f"fence {later} after {earlier}: {_line(row)}"


def i8(e: Evidence) -> Problems:
    """Approval: a gated call that ran was approved before, once, with these arguments."""
    decisions = [row for row in e.rows if _request(row) and row.role == "user"]
    asked = {row.id: row for row in e.rows if _request(row) and _fact(row, "call")}
    for request, times in Counter(_fact(row, "approval") for row in decisions).items():
        if times > 1:
            yield f"{times} decisions about the request {request}"
    results = e.results
    for effect in e.effects or ():
        ours = {row.id for row in e.rows if row.session == effect.session}
        if effect.tool not in e.gated or effect.call not in ours:
            continue
        result = results.get(effect.call)
        until = math.inf if result is None else result.sequence or 0
        if not any(_approves(row, asked, effect) and (row.sequence or 0) < until for row in decisions):
            yield f"ran without an approval: {effect}"


def i9(e: Evidence) -> Problems:
    """Terminality: each run has one last word; after it comes a prompt, and no prompt comes before it."""
    rows = [row for row in e.settled if row.type not in ASIDE]
    for before, row in pairwise([None, *rows]):
        begins = _prompt(row) and not _lane(row) and row.content in e.accepted.values()
        if begins and before is not None and not _final(before) and not _prompt(before):
            yield f"a prompt within a run: {_line(row)}"
        if before is not None and _final(before) and not _prompt(row) and not _goes_on(before):
            yield f"after the last word: {_line(row)}"
    if e.at_rest and rows and not _final(rows[-1]):
        yield f"a run without its last word: {_line(rows[-1])}"


def i16(e: Evidence) -> Problems:
    """Honesty: what was cut or failed never ends in `ok`."""
    for turn in _turns(e.settled):
        stops = [row for row in turn if row.type == "stop"]
        last = max(row.attempt for row in turn)
        cut = [row for row in turn if _cut(row) and (row.role == "tool" or row.attempt == last)]
        if cut and (not stops or _fact(stops[-1], "reason") in ENDED_WELL):
            yield f"a turn that ended well has {_line(cut[0])}"
        for stop in stops:
            if _fact(stop, "error") and _fact(stop, "reason") in ENDED_WELL:
                yield f"an error that ended well: {_line(stop)}"
    for row in e.settled:
        if row.more:
            yield f"open in a run that is over: {_line(row)}"
    for effect in e.effects or ():
        result = e.results.get(effect.call)
        if effect.outcome == "raised" and result is not None and not _fact(result, "is_error"):
            yield f"the tool raised: {_line(result)}"
    for result in e.results.values():
        if _cut(result) and not _fact(result, "is_error"):
            yield f"cut, and not an error: {_line(result)}"


def i18(e: Evidence) -> Problems:
    """Cancel safety: nothing of a cancelled run is written after `cancel` has returned."""
    rows = {row.id: row for row in e.rows}
    for fence, count in e.cancels:
        for write in e.writes[count:]:
            if write.fence == fence and write.id in rows:
                yield f"written after the cancel of fence {fence}: {_line(rows[write.id])}"


def i19(e: Evidence) -> Problems:
    """Budget: no prompt takes more turns or calls than the limits say."""
    turns = calls = 0
    fences = {write.id: write.fence for write in reversed(e.writes)}
    for before, row in pairwise([None, *e.rows]):
        same_run = before is not None and fences.get(before.id) == fences.get(row.id)
        if not same_run or (_prompt(row) and _lane(row) not in ("steer", "feedback")):
            turns = calls = 0
        turns += row.type == "stop" and _fact(row, "reason") in TURN_ENDS
        calls += row.type == "tool_call"
        if turns > e.max_turns or calls > e.max_calls:
            yield f"turn {turns} and call {calls} of a prompt: {_line(row)}"
            return


def i4(e: Evidence) -> Problems:
    """Replayable: no provider would refuse the request."""
    for model, request in e.requests.items():
        yield from (f"{model}: {text}" for text in lint(model, request))


@dataclass(frozen=True, slots=True)
class Rules:
    """What a provider wants of a request: the form of call ids, no two neighbours of one role, its own data alone."""

    ids: str = r"[a-zA-Z0-9_-]{1,64}"
    alternating: bool = False
    own: tuple[str, ...] = ()


RULES = {
    "openai/gpt": Rules(r"[a-zA-Z0-9_-]{1,40}"),
    "mistral/large": Rules("[a-zA-Z0-9]{9}", alternating=True),
    "anthropic/claude": Rules(own=("thinking_blocks",)),
    "deepseek/chat": Rules(own=("reasoning_content",)),
    "gemini/pro": Rules(own=("extra_content", "provider_specific_fields")),
    "other/model": Rules(),
}
PLAIN = {"role", "content", "tool_calls", "tool_call_id"}
SIGNED = "signed by "  # a scripted model writes this and its name into its opaque data


def lint(model: str, request: Sequence[Mapping[str, Any]]) -> Problems:
    """Say what a provider would refuse, by what its documentation says."""
    rules, waiting, seen = RULES[model], [], set()
    for number, entry in enumerate(request):
        role, content, asked = entry.get("role"), entry.get("content"), entry.get("tool_calls", [])
        if role not in ("system", "user", "assistant", "tool"):
            yield f"{number}: role {role!r}"
        if not (content or asked) or ("content" in entry and not str(content).strip()):
            yield f"{number}: empty"
        if rules.alternating and role != "tool" and number and request[number - 1]["role"] == role:
            yield f"{number}: a second {role} in a row"
        yield from (f"{number}: {text}" for text in _foreign(entry, rules, model))
        if role == "tool":
            if not waiting or waiting.pop(0) != entry.get("tool_call_id"):
                yield f"{number}: a result that answers no call, or out of order"
        elif waiting:
            yield f"{number}: before it the calls {waiting} have no result"
            waiting = []
        for call in asked:
            waiting.append(call["id"])
            yield from (f"{number}: {text}" for text in _call(call, rules, seen))
    if waiting:
        yield f"the last calls {waiting} have no result"


def _foreign(entry: Mapping[str, Any], rules: Rules, model: str) -> Problems:
    parts = [entry, *entry.get("tool_calls", [])]
    for key in {key for part in parts for key in part} - PLAIN - {"id", "type", "function", *rules.own}:
        yield f"{key!r} is another provider's"
    for signer in re.findall(SIGNED + r"(\w+)", json.dumps(entry)):
        if signer not in model:
            yield f"data of {signer} is sent to {model}"


def _call(call: Mapping[str, Any], rules: Rules, seen: set[str]) -> Problems:
    if call["id"] in seen or not re.fullmatch(rules.ids, call["id"]):
        yield f"call id {call['id']!r}"
    seen.add(call["id"])
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call["function"]["name"]):
        yield f"tool name {call['function']['name']!r}"
    try:
        good = isinstance(json.loads(call["function"]["arguments"]), dict)
    except ValueError:
        good = False
    if not good:
        yield f"arguments {call['function']['arguments']!r}"


INVARIANTS = (i1, i2, i3, i4, i5, i6, i7, i8, i9, i16, i18, i19)


def _turns(rows: Sequence[Message]) -> Iterator[list[Message]]:
    """Give what the model said at once, with its stop and the results of its calls."""
    turn: list[Message] = []
    over = False
    for row in rows:
        said = row.role == "assistant" and row.type != "stop"
        if _prompt(row) or (said and over):
            if turn:
                yield turn
            turn, over = [], False
        if not _prompt(row):
            turn.append(row)
            over = over or row.type in ("stop", "tool_result")
    if turn:
        yield turn


def _fact(row: Message, key: str) -> Any:
    return (row.query or {}).get(key)


def _cut(row: Message) -> Any:
    return "open" if row.more else _fact(row, "cut")


def _lane(row: Message) -> Any:
    return _fact(row, "lane") or ("feedback" if _fact(row, "feedback") else None)


def _prompt(row: Message) -> bool:
    return row.role in ("user", "system") and row.type not in ASIDE


def _request(row: Message) -> bool:
    return row.type == "approval"


def _final(row: Message) -> bool:
    return row.type == "stop" and _fact(row, "reason") != "tool_calls"


def _goes_on(stop: Message) -> bool:
    """The run pauses there, or takes a turn again whose context was too long."""
    return _fact(stop, "reason") == "paused" or (_fact(stop, "error") or {}).get("kind") == "context_overflow"


def _approves(row: Message, asked: Mapping[str, Message], effect: Effect) -> bool:
    request = asked.get(_fact(row, "approval"))
    if request is None or _fact(request, "call") != effect.call:
        return False
    args = {"approve": _fact(request, "args"), "edit": _fact(row, "args")}.get(_fact(row, "decision"))
    return args == effect.args


def _line(row: Message | None) -> str:
    if row is None:
        return "nothing"
    return f"{row.sequence} {row.id[-6:]} {row.role}/{row.type} {row.content!r:.60} {dict(row.query or {})}"
