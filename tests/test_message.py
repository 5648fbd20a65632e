"""Messages and the arithmetic of their fragments."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamagent.errors import MessageError
from streamagent.message import Message, clean_text, fold, merge, new_id, split, utc_now

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=50)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
queries = st.none() | st.dictionaries(texts, json_values, min_size=1, max_size=3)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    type=st.sampled_from(["text", "reasoning", "tool_call", "tool_result", "stop", "of the future"]),
    content=texts,
    query=queries,
    attempt=st.integers(1, 9),
    sequence=st.none() | st.integers(1, 99),
    session=st.none() | st.just("s"),
    more=st.booleans(),
)


@given(messages)
def test_json_keeps_every_field(message):
    assert Message.from_json(message.to_json()) == message


@given(messages, st.data())
def test_any_fragmentation_folds_to_the_same_message(message, data):
    message = replace(message, more=False)
    fragments = [message]
    for size in data.draw(st.lists(st.integers(1, 20), max_size=4)):
        fragments = [piece for part in fragments for piece in _resplit(part, size)]
    assert fold(fragments) == [message]


def _resplit(part, size):
    """Cut one fragment further, keeping the query on its last piece."""
    pieces = list(split(replace(part, more=False), size))
    return [*pieces[:-1], replace(pieces[-1], more=part.more)]


@given(st.lists(messages, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_interleaved_fragments_fold_in_opening_order(whole, random):
    whole = [replace(message, more=False) for message in whole]
    queues = [list(split(message, 7)) for message in whole]
    mixed = [queue.pop(0) for queue in queues]  # the openings, in order
    while any(queues):
        mixed.append(random.choice([queue for queue in queues if queue]).pop(0))
    assert fold(mixed) == whole


@given(messages, messages)
def test_merging_neighbours_gives_what_folding_gives(first, second):
    first, second = replace(first, more=True), replace(second, id=first.id)
    assert [merge(first, second)] == fold([first, second])


def test_fragments_of_two_messages_do_not_merge():
    with pytest.raises(MessageError, match="different messages"):
        merge(Message(more=True), Message())


def test_nothing_follows_the_last_fragment():
    message = Message(content="a")
    with pytest.raises(MessageError, match="closed already"):
        merge(message, message)
    with pytest.raises(MessageError, match="closed already"):
        fold([message, message])


def test_split_keeps_to_the_size_at_the_limit_and_beyond():
    message = Message(content="abcd")
    assert [part.content for part in split(message, 4)] == ["abcd"]
    assert [part.content for part in split(message, 3)] == ["abc", "d"]
    with pytest.raises(ValueError, match="at least 1"):
        list(split(message, 0))


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"{", "not a message"),
        (b"[]", "JSON object, not list"),
        (b'{"role":"robot"}', "'role'"),
        (b'{"sequence":true}', "'sequence'"),
        (b'{"content":1}', "'content'"),
        (b'{"query":[]}', "'query'"),
        (b'{"more":"yes"}', "'more'"),
        (b'{"created_at":"noon"}', "'created_at'"),
        (b'{"created_at":7}', "'created_at'"),
    ],
)
def test_bad_json_names_what_is_wrong(data, names):
    with pytest.raises(MessageError, match=names):
        Message.from_json(data)


def test_the_older_form_of_a_result_is_read():
    """Ruling 1: role assistant, type tool, query {tool, ID}."""
    message = Message.from_json(b'{"role":"assistant","type":"tool","content":"15","query":{"tool":"stock","ID":"c1"}}')
    assert (message.role, message.type, message.query) == ("tool", "tool_result", {"tool": "stock", "id": "c1"})


def test_a_time_without_zone_is_utc():
    assert (
        Message.from_json(b'{"created_at":"2026-01-02T03:04:05"}').created_at.isoformat() == "2026-01-02T03:04:05+00:00"
    )


def test_ids_are_version_7_unique_and_increasing():
    ids = [new_id() for _ in range(5000)]
    assert ids == sorted(set(ids))
    assert all(id_[14] == "7" and id_[19] in "89ab" and len(id_) == 36 for id_ in ids)


def test_text_is_made_storable():
    assert clean_text("a\0b") == "ab"
    assert clean_text("\ud83c\udf0d\0") == "\U0001f30d"
    assert clean_text("x\ud83c") == "x\ufffd"
    assert clean_text("ä\0") == "ä"


@pytest.mark.parametrize("value", [object(), float("nan"), {1: 2}, "\ud800", utc_now()])
def test_a_query_that_json_cannot_hold_is_refused(value):
    with pytest.raises(MessageError, match="cannot be JSON"):
        Message(query={"a": value}).to_json()


def test_integers_of_any_size_survive():
    query = {"args": {"id": 123456789012345678901234567890, "none": None, "small": [2**63 - 1, 2**64]}}
    assert Message.from_json(Message(query=query).to_json()).query == query


def test_text_that_looks_like_a_long_number_stays_text():
    message = Message(content="12345678901234567890 é", query={"n": None})
    assert Message.from_json(message.to_json().decode()) == message


@pytest.mark.parametrize("data", [b"NaN", b'{"query":{"n":NaN,"i":1234567890123456789}}', b"\xff"])
def test_what_only_python_takes_for_json_is_refused(data):
    with pytest.raises(MessageError, match="not a message"):
        Message.from_json(data)


def test_a_message_that_contains_itself_is_refused():
    query = {}
    query["self"] = query
    with pytest.raises(MessageError, match="cannot be JSON"):
        Message(query=query).to_json()


def test_a_message_is_final_when_nothing_follows():
    assert Message.stop("length").is_final
    assert not Message.stop("tool_calls").is_final
    assert not Message.stop("stop", again="feedback").is_final
    assert not Message(type="text").is_final
