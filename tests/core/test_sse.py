"""Server-sent events from bytes that are cut anywhere."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamagent._core.sse import DONE, SSEDecoder, parse_event
from streamagent.errors import ModelError

# A busy machine is no failure.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def decode(*pieces, limit=1000):
    decoder = SSEDecoder(limit=limit)
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events + list(decoder.end())


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b": comment\n\n:\n\ndata: a\n\n", [b"a"]),
        (b": comment\ndata: a\n\n", [b"a"]),
        (b"data:\n\ndata: \n\ndata\n\n", []),
        (b"event: error\nid: 7\nretry: 10\ndata: a\n\n", [b"a"]),
        (b"data: {\ndata: }\n\n", [b"{\n}"]),
        (b"\n\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: [DONE]\n\n", [DONE]),
        (b"dataset: a\n\n", []),
        ("data: 日本🌍\n\n".encode(), ["日本🌍".encode()]),
    ],
)
def test_events_wherever_they_are_cut(raw, events):
    """The same events come of the bytes whole, one by one, and cut in two at every place."""
    assert decode(raw) == events
    assert decode(*(raw[i : i + 1] for i in range(len(raw)))) == events
    for cut in range(len(raw)):
        assert decode(raw[:cut], b"", raw[cut:]) == events


@pytest.mark.parametrize("tail", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r"])
def test_last_event_without_blank_line(tail):
    """The end of the stream ends the last event."""
    assert decode(b"data: 1\n\n", tail) == [b"1", DONE]
    assert decode(b"data: 1\n\n", tail.replace(DONE, b"{}")) == [b"1", b"{}"]


def test_cut_event_is_dropped():
    """Half an event at the end of the stream is no event."""
    assert decode(b'data: {"choices": [') == []


@pytest.mark.parametrize("pieces", [[b"data: " + b"x" * 20], [b"x" * 9, b"x" * 9], [b"data: 12345678901234\n\n"]])
def test_event_over_the_limit(pieces):
    """An event that never ends does not fill the memory."""
    with pytest.raises(ModelError, match="more than 15 bytes") as caught:
        decode(*pieces, limit=15)
    assert caught.value.kind == "protocol"


def test_events_before_one_over_the_limit():
    """What came before is not lost."""
    events = SSEDecoder(limit=15).feed(b"data: 1\n\ndata: 12345678901234\n\n")
    assert next(events) == b"1"
    with pytest.raises(ModelError):
        next(events)


@pytest.mark.parametrize("data", [": keepalive", '{"type":"ping"}', "", "[]", "1", "null", "ping", '{"object":"list"}'])
def test_noise_means_nothing(data):
    """Only objects with choices, an error or usage count."""
    assert parse_event(data) is None
    assert parse_event(data.encode()) is None


@pytest.mark.parametrize(
    "value", [{"choices": []}, {"error": "x"}, {"usage": None}, {"object": "error", "message": "x"}, {"choices": None}]
)
def test_chunks_count(value):
    """A chunk is returned as it is."""
    assert parse_event(json.dumps(value)) == value
    assert parse_event(b" " + json.dumps(value).encode() + b"\n") == value


@pytest.mark.parametrize(
    "data",
    [
        '{"choices": [',
        '{"a"}',
        "{<html>",
        '{"choices": []} 1',
        '{"a":' * 100_000,
        '{"choices": [1' + "0" * 5000 + "]} 1",
    ],
)
def test_damaged_object(data):
    """A chunk that cannot be read is not skipped: text would be missing."""
    with pytest.raises(ModelError) as caught:
        parse_event(data)
    assert caught.value.kind == "protocol"
    assert caught.value.retryable


def test_two_objects_in_one_event():
    """Two chunks in one event are an error (quirk Q89)."""
    with pytest.raises(ModelError, match="several objects"):
        parse_event('{"choices": []}\n {"choices": []}')


@pytest.mark.parametrize("data", ['{"choices": []} {"error": "x"} ', '{"error": "x"}{"choices": []}'])
def test_error_beside_another_object(data):
    """Of two objects the one that tells of an error is returned."""
    assert parse_event(data) == {"error": "x"}


def test_half_a_surrogate_pair():
    """Half an escaped pair does not lose the chunk."""
    assert parse_event(rb'{"choices": ["\ud83d"]}') == {"choices": ["\ud83d"]}


def test_large_integer_in_object_arguments():
    """Arguments that are an object keep their integers exactly."""
    assert parse_event(b'{"choices": [{"arguments" : {"id": %d}}]}' % 10**29)["choices"][0]["arguments"]["id"] == 10**29


@PATIENT
@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"data: ", b"\n\n", b"\r\n", b"{}", b"[DONE]"]), max_size=20))
def test_any_bytes(pieces):
    """Whatever comes, it is decoded, the same in one piece as in many."""
    try:
        assert decode(*pieces, limit=200) == decode(b"".join(pieces), limit=200)
    except ModelError as error:
        assert error.kind == "protocol"
