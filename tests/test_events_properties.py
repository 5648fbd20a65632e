"""What holds for the events of every stream: the order is one that pi could give, and fragment borders mean nothing."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from streamagent.message import Message, split
from tests.lifecycle import call, check_order, encode, progress, result, stop, text, user

REASONS = ["stop", "tool_calls", "length", "error", "aborted", "rate_limit", "turn_limit", "paused"]


@st.composite
def tools(draw, calls):
    """What tool_dispatch says of a batch: announced or not, in parallel or one by one, in an order that can be."""
    announced, sequential = draw(st.booleans()), draw(st.booleans())
    batches = [[asked] for asked in calls] if sequential else [calls]
    for batch in batches:
        for asked in batch if announced else ():
            yield progress("start", asked, args=asked.query["args"], sequential=sequential)
        for asked in draw(st.permutations(batch)) if announced else ():
            for _ in range(draw(st.integers(0, 2))):
                yield progress("update", asked, "…")
            yield progress("end", asked, "15")
        yield from (result(asked, "15", is_error=draw(st.booleans())) for asked in batch)


@st.composite
def runs(draw):
    """The whole messages of a run as the runtime yields it."""
    messages = []
    for turn in range(draw(st.integers(1, 4))):
        messages += [user(f"Prompt {turn}.") for _ in range(draw(st.integers(turn == 0, 2)))]
        for kind in draw(st.lists(st.sampled_from(["text", "reasoning"]), max_size=3)):
            messages += text(draw(st.text(max_size=12)), kind=kind)
        calls = [call(f"c{turn}{number}") for number in range(draw(st.integers(0, 3)))]
        messages += [*calls, stop("tool_calls" if calls else draw(st.sampled_from(["stop", "length", "error"])))]
        messages += draw(tools(calls))
    last = draw(st.sampled_from([None, "turn_limit", "aborted", "terminate"]))
    return messages + ([stop(last)] if last else [])


def fragmented(messages, random):
    """The same run in other fragments; the calls of an answer open in order, then stream between one another."""
    fragments, calls = [], []
    for message in [*messages, None]:
        if message is not None and message.type == "tool_call":
            calls.append([replace(part, query=message.query) for part in split(message, random.randint(1, 6))])
            continue
        fragments += [call.pop(0) for call in calls]
        while calls := [call for call in calls if call]:
            fragments.append(random.choice(calls).pop(0))
        if message is not None:
            fragments += [message] if message.type == "progress" else split(message, random.randint(1, 6))
    return fragments


def without_granularity(events):
    """The events as plain data; deltas of one block joined, partial messages and what tools show meanwhile left out."""
    plain, blocks = [], {}
    for event in events:
        data = event.to_dict()
        if event.type == "message_update":
            said = data["assistantMessageEvent"]
            block = blocks.setdefault(said["contentIndex"], {"delta": "", "end": None})
            block["delta"] += said.get("delta", "")
            block["end"] = said.get("content", said.get("toolCall", block["end"]))
        elif event.type != "tool_execution_update":
            plain.append((data, blocks) if event.type == "message_end" else data)
            blocks = {} if event.type == "message_end" else blocks
    return plain


@settings(deadline=None)
@given(runs(), st.integers())
def test_other_fragments_of_a_run_give_the_same_events_but_for_the_updates(messages, seed):
    events, again = encode(messages), encode(fragmented(messages, Random(seed)))
    check_order(events)
    check_order(again)
    assert without_granularity(again) == without_granularity(events)


@settings(deadline=None)
@given(runs())
def test_every_message_of_a_run_is_told_once_and_in_order_of_its_kind(messages):
    told = [made["role"] for made in encode(messages)[-1].messages]
    results = [message for message in messages if message.type == "tool_result"]
    assert told.count("toolResult") == len(results)
    assert told.count("user") == sum(message.role == "user" for message in messages)


CALLS = [call("a"), call("b"), call("c", args=None, invalid="truncated")]
ONE_CALL = st.sampled_from(CALLS)
ANYTHING = st.one_of(
    st.just("Hi").map(user),
    st.sampled_from(["text", "reasoning"]).map(lambda kind: text("15", kind=kind)[0]),
    st.integers(1, 2).map(lambda attempt: Message(content="15", attempt=attempt)),
    ONE_CALL.map(lambda asked: replace(asked)),
    st.builds(progress, st.sampled_from(["start", "update", "end"]), ONE_CALL),
    ONE_CALL.map(result),
    st.sampled_from(REASONS).map(stop),
    ONE_CALL.map(lambda asked: Message(role="tool", type="approval", query={"call": asked.id})),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(ANYTHING, max_size=20, unique_by=lambda message: message.id))
def test_whatever_comes_what_starts_ends_and_the_order_holds(messages):
    check_order(encode(messages))
