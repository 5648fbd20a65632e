"""What holds of every stream: any cut, any interleaving, any garbage."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamagent._core.assembler import Assembler
from streamagent.errors import ModelError
from streamagent.message import Message, fold
from tests.quirks import check_stream, outcome, play_sse

TOOLS = ("add", "weather")
# A busy machine is no failure.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def run(chunks, **options):
    subject = Assembler(tools=TOOLS, **options)
    messages = [message for chunk in chunks for message in subject.feed(chunk)] + subject.end(done=True)
    check_stream(messages)
    return messages


def chunk(delta, finish=None):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def essence(messages):
    return [(m.type, m.content, {k: v for k, v in (m.query or {}).items() if k != "id"}) for m in fold(messages)]


def cut(draw, text):
    """Cut a text at some places; some pieces are empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


texts = st.text(st.characters() | st.sampled_from("\ud83c\udf0d\0<>"), max_size=30)
contents = texts | st.tuples(st.sampled_from(["<think>", "\n<think>", "a<think>", "</think>"]), texts, texts).map(
    lambda parts: f"{parts[0]}{parts[1]}</think>{parts[2]}"
)


@PATIENT
@given(st.lists(st.tuples(st.sampled_from(["content", "reasoning_content"]), contents), max_size=5), st.data())
def test_any_cut_of_text(runs, data):
    """However text and reasoning are cut into chunks, and chunks into reads, the messages are the same."""
    options = {"think_tags": data.draw(st.booleans()), "starts_in_think": data.draw(st.booleans())}
    whole = essence(run([chunk({key: text}) for key, text in runs], **options))
    chunks = [chunk({key: piece}) for key, text in runs for piece in cut(data.draw, text)]
    assert essence(run(chunks, **options)) == whole
    subject = Assembler(tools=TOOLS, **options)
    assert essence(subject.feed(*chunks) + subject.end(done=True)) == whole


@PATIENT
@given(contents, st.booleans(), st.data())
def test_what_is_shown_is_never_taken_back(text, think_tags, data):
    """At every moment the text shown is the beginning of the text at the end, whatever breaks then."""
    pieces = cut(data.draw, text)
    final = outcome(run([chunk({"content": piece}) for piece in pieces], think_tags=think_tags))["text"]
    for count in range(len(pieces)):
        subject = Assembler(think_tags=think_tags)
        shown = [message for piece in pieces[:count] for message in subject.feed(chunk({"content": piece}))]
        shown += subject.fail(ModelError("reset", kind="connection", retryable=True))
        assert final.startswith(outcome(shown)["text"])


@PATIENT
@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers() | texts), min_size=1, max_size=4), st.data())
def test_any_interleaving_of_calls(arguments, data):
    """However the pieces of several calls are mixed, the calls are the same."""
    streams = [
        [
            {"index": index, "id": f"c{index}", "function": {"name": TOOLS[index % 2], "arguments": ""}},
            *({"index": index, "function": {"arguments": piece}} for piece in cut(data.draw, json.dumps(value))),
        ]
        for index, value in enumerate(arguments)
    ]
    order = data.draw(st.permutations([index for index, stream in enumerate(streams) for _ in stream]))
    whole = calls(run([chunk({"tool_calls": [entry]}) for stream in streams for entry in stream]))
    pieces = [iter(stream) for stream in streams]
    entries = [next(pieces[index]) for index in order]
    assert calls(run([chunk({"tool_calls": [entry]}) for entry in entries])) == whole
    assert calls(run([chunk({"tool_calls": entries})])) == whole


def calls(messages):
    found = [message for message in fold(messages) if message.type == "tool_call"]
    return sorted((message.query["id"], message.content, repr(message.query)) for message in found)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters() | st.just("\ud83c"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def some(**fields):
    """Objects in which every field may be absent, right, or anything."""
    return st.fixed_dictionaries({}, optional={name: value | json_values for name, value in fields.items()})


indices = st.integers(-1, 2)
entries = some(
    index=indices,
    id=st.sampled_from(["", "c1", "c2"]),
    function=some(
        name=st.sampled_from(["", "add", "wea", "ther", "Add"]), arguments=st.sampled_from(["", "{", "}", "{}"])
    ),
    extra_content=json_values,
    provider_specific_fields=json_values,
)
blocks = some(type=st.just("thinking"), thinking=texts, signature=st.just("s"), data=texts)
deltas = some(
    content=texts | st.lists(some(type=st.sampled_from(["text", "thinking"]), text=texts, thinking=texts)),
    reasoning_content=texts,
    reasoning=texts,
    refusal=texts,
    tool_calls=st.lists(entries, max_size=3),
    thinking_blocks=st.lists(blocks, max_size=2),
    reasoning_details=json_values,
    provider_specific_fields=some(thought_signatures=json_values),
)
reasons = st.sampled_from([None, "", "stop", "tool_calls", "length", "content_filter", "error", "STOP"])
chunks = some(
    choices=st.lists(some(delta=deltas, finish_reason=reasons, index=indices), max_size=2),
    error=st.none() | some(message=texts, code=st.integers(), type=texts),
    usage=some(prompt_tokens=st.integers(), details=json_values),
    model=texts,
    object=st.sampled_from(["error", "chat.completion.chunk"]),
)


def storable(messages):
    """Assert that every message can be stored and read again."""
    for message in messages:
        assert Message.from_json(message.to_json()).id == message.id


@settings(PATIENT, max_examples=300)
@given(st.lists(chunks | json_values, max_size=8), st.booleans())
def test_any_chunks(stream, done):
    """Garbage gives messages or one kind of error, which changes nothing, and the answer still ends as it should."""
    subject, clean = Assembler(tools=TOOLS), Assembler(tools=TOOLS)
    messages, expected = [], []
    for one in stream:
        try:
            messages += subject.feed(one)
        except ModelError as error:
            assert error.kind == "protocol"
        else:
            expected += clean.feed(one)
    messages += subject.end(done=done)
    expected += clean.end(done=done)
    check_stream(messages)
    storable(messages)
    assert essence(messages) == essence(expected)


@PATIENT
@given(st.lists(chunks.map(json.dumps) | texts, max_size=6), st.data())
def test_any_events(events, data):
    """Any events over any reads give messages or one kind of error."""
    body = "".join(f"data: {event}\n\n" for event in events).encode("utf-8", "surrogatepass")
    subject = Assembler(tools=TOOLS)
    try:
        messages = play_sse(subject, cut(data.draw, body))
    except ModelError as error:
        assert error.kind == "protocol"
        messages = subject.fail(error)
        assert messages[-1].query["error"]["kind"] == "protocol"
    else:
        check_stream(messages)
