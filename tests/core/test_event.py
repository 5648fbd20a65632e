"""What a provider's bytes say, however many events come with one read of the network."""

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamagent._core.assembler import _REPEATED, Assembler
from streamagent._core.event import EventReader, read_event
from streamagent._core.sse import DONE
from streamagent.message import fold

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def chunk(delta, **more):
    return orjson.dumps({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None, **more}]})


words = st.sampled_from(["a", " the", "", "héllo", "日本", "🌍"])
spoken = st.builds(lambda text: chunk({"content": text}), words)
thought = st.builds(lambda text: chunk({"content": None, "reasoning_content": text}), words)
odd = st.sampled_from(
    [
        chunk({"role": "assistant", "content": ""}),
        chunk({"role": "assistant"}),
        chunk({"content": "both", "reasoning_content": "at once"}),
        chunk({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}}]}),
        chunk({}, finish_reason="stop"),
        orjson.dumps({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}),
        b"ping",
    ]
)
events = st.lists(st.one_of(spoken, spoken, spoken, thought, odd), max_size=60)


def framed(data):
    return b"data: %b\n\n" % data


def flat(said):
    """Give pieces that came together one by one."""
    for item in said:
        if type(item) is tuple and isinstance(item[1], list):
            yield from ((item[0], piece) for piece in item[1])
        else:
            yield item if type(item) is tuple else vars(item)


def read(*reads):
    reader = EventReader()
    said = [item for data in reads for item in reader.feed(data)]
    return list(flat(said + reader.end())), reader.done, reader.error and str(reader.error)


@PATIENT
@given(events)
def test_events_that_come_together_say_what_each_says_alone(given_events):
    """One read, a read for each event, and each event by itself: the same."""
    alone = [item for item in map(read_event, given_events) if item is not None]
    together = read(b"".join(map(framed, given_events)))
    assert together == read(*map(framed, given_events))
    assert together == (list(flat(alone)), False, None)


@PATIENT
@given(st.lists(st.one_of(spoken, thought), max_size=60), st.randoms(use_true_random=False))
def test_the_messages_are_the_same_however_many_pieces_come_together(given_events, random):
    def told(sizes):
        reader, assembler, rest, messages = EventReader(), Assembler(), list(given_events), []
        while rest:
            size = next(sizes)
            messages += assembler.feed(*reader.feed(b"".join(map(framed, rest[:size]))))
            del rest[:size]
        return [(m.type, m.content, (m.query or {}).get("error")) for m in fold(messages + assembler.end(done=True))]

    assert told(iter(lambda: random.randint(1, 20), 0)) == told(iter(lambda: 1, 0))


def test_nothing_behind_done_counts_and_what_stood_before_an_error_does():
    before = [chunk({"content": f"{number}"}) for number in range(40)]
    said, done, error = read(b"".join(map(framed, [*before, DONE, *before])))
    assert (len(said), done, error) == (40, True, None)
    said, done, error = read(b"".join(map(framed, [*before, b'{"choices": [', *before])))
    assert (len(said), done, error) == (40, False, "the provider sent an event that is not JSON")


def test_two_objects_in_one_event_are_an_error_also_between_events_that_are_read_together():
    pair = chunk({"content": "x"}) + b" " + chunk({"content": "y"})
    _, _, error = read(b"".join(map(framed, [chunk({"content": "a"}), pair, chunk({"content": "b"})])))
    assert error == "the provider sent several objects in one event"
    halves = [b'{"choices":[', b'{"delta":{"content":"A"}}]}']  # two halves of an object make up for the pair by number
    assert read(b"".join(map(framed, [*halves, pair])))[2] == "the provider sent an event that is not JSON"


def test_a_model_that_repeats_itself_is_stopped_at_the_same_piece_however_many_come_together():
    """The last that is allowed, and one more; alone, and at a border between two reads."""
    limit = _REPEATED["text"]
    for before in (0, 1, limit - 1):
        for repeated, reason in ((limit - 1, None), (limit, "repetition")):
            assembler = Assembler()
            messages = assembler.feed(("text", ["other", *["same!"] * min(before, repeated)]))
            if repeated > before:
                messages += assembler.feed(("text", ["same!"] * (repeated - before)), ("text", ["last"]))
            stops = [m.query["error"]["kind"] for m in messages if m.type == "stop"]
            assert stops == ([reason] if reason else []), (before, repeated)
