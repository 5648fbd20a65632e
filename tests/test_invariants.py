"""The checker itself: a history that keeps all invariants, and for each invariant histories that break it."""

from dataclasses import replace

import pytest

from streamagent.message import Message
from streamagent.records import Usage
from streamagent.testing import invariants
from streamagent.testing.evidence import Effect, Evidence, Shown, Write
from streamagent.testing.invariants import check


def row(number, role, type_, content="", **query):
    return Message(
        id=f"m{number}", session="s", sequence=number, role=role, type=type_, content=content, query=query or None
    )


def result(number, call, **more):
    return row(number, "tool", "tool_result", "15", call=call, **{"tool": "stock", "is_error": False, **more})


ROWS = [
    row(1, "user", "text", "How many?"),
    row(2, "assistant", "tool_call", "{}", tool="stock", id="c1", args={}),
    row(3, "assistant", "tool_call", "{}", tool="stock", id="c2", args={}),
    row(4, "assistant", "text", "Wait."),
    row(5, "assistant", "stop", reason="tool_calls"),
    result(6, "m2"),
    result(7, "m3"),
    row(8, "assistant", "text", "Fifteen."),
    row(9, "assistant", "stop", reason="stop"),
    row(10, "user", "text", "Sure?"),
    row(11, "assistant", "text", "Yes.", cut="aborted"),
    row(12, "assistant", "stop", reason="aborted"),
]
GATED = [
    row(1, "user", "text", "Ship it."),
    row(2, "assistant", "tool_call", "{}", tool="ship", id="c1", args={"to": "A"}),
    row(3, "assistant", "stop", reason="tool_calls"),
    row(4, "tool", "approval", call="m2", tool="ship", args={"to": "A"}),
    row(5, "assistant", "stop", reason="paused"),
    row(6, "user", "approval", approval="m4", decision="approve"),
    result(7, "m2"),
    row(8, "assistant", "stop", reason="stop"),
]
REQUEST = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "How many?"},
    {
        "role": "assistant",
        "thinking_blocks": ["signed by claude"],
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "stock", "arguments": "{}"}},
            {"id": "c2", "type": "function", "function": {"name": "stock", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "15"},
    {"role": "tool", "tool_call_id": "c2", "content": "15"},
]
SEEN = Shown(texts={"m10": "Sure?", "m11": "Yes.", "m12": ""}, closed={"m10", "m11", "m12"}, ended=True)
GOOD = Evidence(
    rows=ROWS,
    before=ROWS[:9],
    requests={"anthropic/claude": REQUEST},
    effects=[
        Effect(call="m2", tool="stock", args={}, outcome="returned"),
        Effect(call="m3", tool="ship", args={}, outcome="returned"),
    ],
    shown=[SEEN, Shown(key="k", end="m9"), Shown(key="k", end="m9", ended=True)],
    writes=[Write(owner=1, fence=1, id=f"m{n}") for n in range(1, 10)]
    + [Write(owner=2, fence=2, id=f"m{n}") for n in range(10, 13)],
    accepted={"k": "How many?", "Sure?": "Sure?"},
    cancels=[(2, 12)],
    max_turns=2,
    max_calls=2,
    reread={3: ROWS[3:], 11: ROWS[11:]},
    usage=Usage(turns=3, tool_calls=2, uncounted=3),
)


def with_row(number, changed):
    """The good history with another row at a sequence."""
    return {"rows": [*ROWS[: number - 1], changed, *ROWS[number:]], "before": (), "reread": {}}


def without(number):
    """The good history in which a row never was."""
    rows = [*ROWS[: number - 1], *(replace(later, sequence=later.sequence - 1) for later in ROWS[number:])]
    return {"rows": rows, "before": (), "reread": {}}


def changed(number, **query):
    """The good history with other facts in a row."""
    return with_row(number, replace(ROWS[number - 1], query={**(ROWS[number - 1].query or {}), **query}))


def requested(number, **fields):
    """The good request with another entry."""
    entries = [*REQUEST[:number], REQUEST[number] | fields, *REQUEST[number + 1 :]]
    return {"requests": {"anthropic/claude": entries}}


def asked(**fields):
    """The good request with another second call."""
    calls = REQUEST[2]["tool_calls"]
    return requested(2, tool_calls=[calls[0], calls[1] | fields])


def function(**fields):
    return asked(function={"name": "stock", "arguments": "{}"} | fields)


def effects(*items):
    return {"effects": [Effect(call=call, tool=tool, args={}, outcome=how) for call, tool, how in items]}


def gated(*, without=0, twice=0, rows=GATED):
    """A history with an approval, from which a row is missing, or in which one stands twice."""
    numbers = sorted([*(row.sequence for row in rows if row.sequence != without), *([twice] if twice else [])])
    rows = [replace(rows[n - 1], sequence=new, id=f"{rows[n - 1].id}") for new, n in enumerate(numbers, 1)]
    effect = Effect(call="m2", tool="ship", args={"to": "A"}, outcome="returned")
    seen = {"shown": (), "writes": (), "accepted": {}, "cancels": (), "before": (), "max_turns": 9}
    seen |= {"reread": {}, "usage": None}
    return {"rows": rows, "effects": [effect], "gated": frozenset({"ship"}), **seen}


def decided(**query):
    """The same with another decision."""
    return gated(rows=[*GATED[:5], replace(GATED[5], query={"approval": "m4", **query}), *GATED[6:]])


def granted(always=None, **of_effect):
    """The same with a grant, by which a second call ran."""
    rows = [
        *GATED[:5],
        replace(GATED[5], query={**GATED[5].query, "always": {"to": "A"} if always is None else always}),
        result(7, "m2"),
        row(8, "user", "text", "Again."),
        row(9, "assistant", "tool_call", "{}", tool="ship", id="c2", args={"to": "A"}),
        row(10, "assistant", "stop", reason="tool_calls"),
        result(11, "m9"),
        row(12, "assistant", "stop", reason="stop"),
    ]
    first = gated()
    second = Effect(**{"call": "m9", "tool": "ship", "args": {"to": "A"}, "outcome": "returned"} | of_effect)
    return first | {"rows": rows, "effects": [*first["effects"], second], "gated": frozenset({"ship", "send"})}


EXPIRED = row(7, "tool", "approval", approval="m4", call="m2", decision="expired")

HUSH = {"secrets": {"hush"}}
TWO = [("m2", "stock", "returned"), ("m3", "ship", "returned")]
BAD = [
    ("i1", without(7), "answer \\['m2'\\]"),
    ("i1", with_row(7, result(7, "m2")), "answer \\['m2', 'm2'\\]"),
    ("i1", with_row(6, result(6, "m3")) | with_row(7, result(7, "m2")), "turn at 2"),
    ("i1", with_row(6, row(6, "user", "text", "And?")), "turn at 2"),
    ("i2", {"rows": [*ROWS[:2], *ROWS[3:]], "before": ()}, "row 3 has another sequence"),
    ("i2", with_row(8, replace(ROWS[7], id="m2")), "2 rows have the id m2"),
    ("i2", with_row(8, replace(ROWS[7], session="t")), "several sessions"),
    ("i2", with_row(8, replace(ROWS[7], content="Sixteen.")) | {"before": ROWS[:9]}, "was 8 .* is 8"),
    ("i2", {"rows": ROWS[:9], "before": ROWS}, "is nothing"),
    ("i2", {"before": [*ROWS[:7], replace(ROWS[7], content="Six", more=True)]}, "was 8"),
    ("i3", {"shown": [Shown(texts={"m99": "x"}, behind=True)]}, "m99 was shown and is not stored"),
    ("i3", {"shown": [Shown(texts={"m8": "Sixteen."}, closed={"m8"})]}, "shown was 'Sixteen.'"),
    ("i3", {"shown": [Shown(texts={"m8": "Fif"}, closed={"m8"})]}, "shown was 'Fif'"),
    ("i3", {"shown": [Shown(texts={"m8": "Fif"}, ended=True)]}, "shown was 'Fif'"),
    ("i3", {"shown": [Shown(texts={"m11": "Yes. No."}, behind=True)]}, "shown was 'Yes. No.'"),
    ("i4", requested(0, role="developer"), "0: role 'developer'"),
    ("i4", requested(1, content=" "), "1: empty"),
    ("i4", requested(3, tool_call_id="c2"), "3: a result that answers no call, or out of order"),
    ("i4", {"requests": {"openai/gpt": REQUEST}}, "'thinking_blocks' is another provider's"),
    ("i4", requested(2, thinking_blocks=["signed by gpt"]), "data of gpt is sent to anthropic/claude"),
    ("i4", {"requests": {"mistral/large": [REQUEST[1], REQUEST[1]]}}, "1: a second user in a row"),
    ("i4", {"requests": {"anthropic/claude": [*REQUEST[:4], REQUEST[1]]}}, "4: before it the calls \\['c2'\\]"),
    ("i4", {"requests": {"anthropic/claude": REQUEST[:4]}}, "the last calls \\['c2'\\] have no result"),
    ("i4", asked(id="c1"), "call id 'c1'"),
    ("i4", asked(id="c 2"), "call id 'c 2'"),
    ("i4", function(name="a.b"), "tool name 'a.b'"),
    ("i4", function(arguments="[]"), "arguments '\\[\\]'"),
    ("i4", function(arguments="{"), "arguments '{'"),
    ("i5", effects(("m2", "stock", "returned"), ("m2", "stock", "returned")), "ran 2 times"),
    ("i5", effects(("m2", "stock", "cancelled"), *TWO) | {"retry_safe": frozenset({"stock"})}, "ran 2 times"),
    ("i5", effects(("m2", "stock", "cancelled"), *TWO) | {"crashed": True}, "ran 2 times"),
    ("i5", effects(("m3", "ship", "returned")), "ran 0 times, and does not say that: 6"),
    ("i5", effects(("m99", "ship", "returned")), "an effect without a stored call"),
    ("i5", changed(6, is_error=True, cut="crashed"), "no process ended: 6"),
    ("i6", {"accepted": {"k": "Lost."}}, "'k': 0 rows say 'Lost.'"),
    ("i6", with_row(10, replace(ROWS[9], content="How many?")), "'k': 2 rows"),
    ("i6", {"inbox": [Message.user("Sure?")]}, "2 rows say 'Sure\\?'"),
    ("i6", {"shown": [Shown(key="k", end="m9"), Shown(key="k", end="m12")]}, "for another in m12"),
    ("i6", {"shown": [Shown(key="k", ended=True)]}, "saw none"),
    ("i6", {"shown": [Shown(prompt="How many?", end="m9", beyond="m10")]}, "shown what another one asked, m10"),
    ("i7", {"writes": [Write(owner=2, fence=2, id="m1"), Write(owner=1, fence=1, id="m2")]}, "fence 1 after 2: 2"),
    ("i7", {"writes": [Write(owner=1, fence=1, id="m1"), Write(owner=2, fence=1, id="m2")]}, "owners 1 and 2"),
    ("i8", decided(decision="reject"), "ran without an approval"),
    ("i8", decided(decision="edit", args={"to": "B"}), "ran without an approval"),
    ("i8", decided(approval="m3"), "ran without an approval"),
    ("i8", gated(without=6), "ran without an approval"),
    ("i8", gated() | {"inherited": 6}, "ran without an approval"),
    ("i8", granted({"to": "B"}), "ran without an approval: .*'m9'"),
    ("i8", granted(revoked=frozenset({"m6"})), "ran without an approval: .*'m9'"),
    ("i8", granted(tool="send"), "ran without an approval: .*'m9'"),
    ("i8", gated(rows=[*GATED[:6], EXPIRED, *GATED[6:]]), "when its approval had expired"),
    ("i8", gated(twice=6), "2 decisions about the request m4"),
    ("i9", without(9), "a prompt within a run: 9"),
    ("i9", with_row(10, replace(ROWS[7], id="m10", sequence=10)), "after the last word: 10"),
    ("i9", {"rows": ROWS[:8], "before": ()}, "a run without its last word: 8"),
    ("i10", {"widest": 65_537}, "a fragment of 65537 bytes"),
    ("i13", {"reread": {3: ROWS[4:]}}, "after 3 come \\[5, 6"),
    ("i13", {"reread": {11: [ROWS[11], ROWS[11]]}}, "after 11 come \\[12, 12\\]"),
    ("i14", {"foreign": [ROWS[7]]}, "another tenant reads 8 m8"),
    ("i15", {"usage": Usage(turns=3, tool_calls=3, uncounted=3)}, "2 calls are stored, 3"),
    ("i15", {"usage": Usage(turns=3, tool_calls=2, uncounted=2)}, "0 turns were counted, 1"),
    ("i15", changed(9, usage={"total_tokens": 7}), "say 7 tokens, 0"),
    ("i15", changed(9, attempts=[{"usage": {"prompt_tokens": 2, "completion_tokens": 3}}]), "say 5 tokens, 0"),
    ("i16", changed(12, reason="stop"), "a turn that ended well has 11"),
    ("i16", changed(9, error={"kind": "quota"}), "an error that ended well: 9"),
    ("i16", with_row(8, replace(ROWS[7], more=True)), "open in a run that is over: 8"),
    ("i16", effects(("m2", "stock", "raised")), "the tool raised: 6"),
    ("i16", changed(6, cut="aborted"), "cut, and not an error: 6"),
    ("i17", changed(12, error={"message": "no such key: hush"}) | HUSH, "a secret is in row 12"),
    ("i17", with_row(8, replace(ROWS[7], content="hush")) | HUSH, "a secret is in row 8"),
    ("i17", {"shown": [Shown(texts={"m99": "I say hush."}, behind=True)], "gone": {"m99"}} | HUSH, "a viewer saw"),
    ("i17", {"logs": ["refused: hush"]} | HUSH, "a secret is in a log"),
    ("i18", {"cancels": [(2, 11)]}, "written after the cancel of fence 2: 12"),
    ("i19", {"max_turns": 1}, "turn 2 and call 2 of a prompt: 9"),
    ("i19", {"max_calls": 1}, "call 2 of a prompt: 3"),
    ("i20", {"damage": "s.db is damaged"}, "s.db is damaged"),
]


def test_a_good_history_passes():
    check(GOOD)


@pytest.mark.parametrize(("name", "change", "text"), BAD, ids=[f"{name}-{n}" for n, (name, *_) in enumerate(BAD)])
def test_what_breaks_an_invariant_is_found_by_it(name, change, text):
    """At the limit it passes, one beyond it does not; the text names the row."""
    evidence = replace(GOOD, **change)
    with pytest.raises(AssertionError, match=f"(?m)^{name.upper()}: .*{text}"):
        check(evidence)


def test_each_invariant_has_a_history_that_breaks_it():
    assert {name for name, *_ in BAD} == {item.__name__ for item in invariants.INVARIANTS}


def test_a_call_that_was_approved_may_run():
    check(replace(GOOD, **gated()))
    edited = decided(decision="edit", args={"to": "B"})
    check(replace(GOOD, **edited | {"effects": [replace(edited["effects"][0], args={"to": "B"})]}))


def test_what_a_grant_covers_may_run():
    check(replace(GOOD, **granted()))
    check(replace(GOOD, **granted({}, revoked=frozenset({"m7"}))))


def test_what_is_allowed_passes():
    own = Message.user("Hello?")  # of another tenant's session with this name
    check(replace(GOOD, widest=65_536, foreign=[own], secrets={"hush"}, logs=["refused"]))
    lost = Shown(texts={"m98": "x", "m11": "Yes. And more."}, lagged={"m98", "m11"}, closed={"m11"}, behind=True)
    check(replace(GOOD, shown=[lost, Shown(texts={"m11": "Ye"}), Shown(texts={"m99": "x"})], gone={"m99"}))
    check(replace(GOOD, **effects(("m99", "ship", "returned"), *TWO), gone={"m99"}))
    few = {"rows": ROWS[:3], "before": ROWS[:2], "reread": {1: ROWS[1:3]}, "usage": None}
    check(replace(GOOD, **few, at_rest=False, effects=[], shown=[], accepted={}))
    twice = effects(("m2", "stock", "cancelled"), *TWO)
    check(replace(GOOD, **twice, crashed=True, retry_safe=frozenset({"stock"})))
    forked = [*ROWS[:6], result(7, "m3", cut="forked", is_error=True), row(8, "assistant", "stop", reason="aborted")]
    check(Evidence(rows=forked, effects=GOOD.effects[:1]))
    swapped = [*ROWS[:5], replace(ROWS[6], sequence=6), replace(ROWS[5], sequence=7), *ROWS[7:]]
    check(replace(GOOD, rows=swapped, before=(), reread={}, writes=(), streamed=frozenset({"stock"})))


def test_a_run_that_is_paused_waits_with_its_calls():
    paused = [
        *ROWS[:3],
        row(4, "tool", "approval", call="m3"),
        replace(result(5, "m2"), sequence=5),
        row(6, "assistant", "stop", reason="paused"),
    ]
    check(Evidence(rows=paused))
    with pytest.raises(AssertionError, match="I1"):
        check(Evidence(rows=[*paused[:3], *(replace(r, sequence=r.sequence - 1) for r in paused[4:])]))


def test_a_turn_that_says_nothing_but_that_it_is_over_may_follow_one_that_a_crash_cut():
    """I16 is about each of them; only the first one is cut, and says so."""
    rows = [
        *ROWS[:3],
        row(4, "assistant", "text", "Wai", cut="crashed"),
        result(5, "m2", cut="crashed", is_error=True),
        result(6, "m3", cut="crashed", is_error=True),
        row(7, "assistant", "stop", reason="tool_calls", cut="crashed"),
        row(8, "assistant", "stop", reason="stop"),
    ]
    check(Evidence(rows=rows))
    with pytest.raises(AssertionError, match="I16: a turn that ended well has 5"):
        check(Evidence(rows=[*rows[:6], row(7, "assistant", "stop", reason="stop")]))
    late = row(8, "assistant", "text", "We", cut="aborted")
    with pytest.raises(AssertionError, match="I16: a turn that ended well has 8"):
        check(Evidence(rows=[*rows[:7], late, row(9, "assistant", "stop", reason="stop")]))
