"""Text and reasoning, the stop and its reasons."""

import pytest

from streamagent._core.assembler import Assembler
from streamagent.errors import ModelError
from streamagent.message import fold
from tests.quirks import check_stream, outcome


def chunk(finish=None, **delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def answer(*chunks, done=True, **options):
    subject = Assembler(**options)
    messages = [message for one in chunks for message in subject.feed(one)] + subject.end(done=done)
    check_stream(messages)
    return messages


def parts(messages):
    """Return what was said, message by message."""
    return [(message.type, message.content) for message in fold(messages)[:-1]]


def test_blocks():
    """Each run of one kind is a message of its own, closed before the next one opens."""
    chunks = chunk(reasoning_content="a"), chunk(content="b"), chunk(content="c"), chunk(reasoning_content="d")
    messages = answer(*chunks)
    assert parts(messages) == [("reasoning", "a"), ("text", "bc"), ("reasoning", "d")]
    assert [message.more for message in messages] == [True, False, True, True, False, True, False, False]


def test_chunks_of_one_read_are_one_fragment():
    """Chunks that come together give one fragment for each run."""
    subject = Assembler()
    messages = subject.feed(*(chunk(content=text) for text in "abc"), chunk(reasoning="d"))
    assert [(message.content, message.more) for message in messages] == [("abc", False), ("d", True)]


def test_chunks_before_a_damaged_one_are_kept():
    """What came before in the same read is returned by the next call."""
    subject = Assembler()
    with pytest.raises(ModelError) as caught:
        subject.feed(chunk(content="a"), chunk(content=1), chunk(content="b"))
    assert parts(subject.fail(caught.value)) == [("text", "a")]


def test_attempt_and_model():
    """Every message says which attempt it is of, the stop who answered."""
    messages = answer({**chunk(content="a"), "model": "x"}, {**chunk(content="b"), "model": "y"}, attempt=3)
    assert {message.attempt for message in messages} == {3}
    assert messages[-1].query["model"] == "x"
    assert answer(chunk(content="a"), model="mine")[-1].query["model"] == "mine"


def test_nothing_after_the_stop():
    """The stop is the last message, whatever comes."""
    subject = Assembler()
    subject.end(done=True)
    assert subject.feed(chunk(content="a")) == []
    assert subject.feed("garbage") == []
    assert subject.end(done=True) == []
    assert subject.fail(ModelError("x", kind="connection")) == []


@pytest.mark.parametrize(
    ("finish", "done", "reason", "kind"),
    [
        (None, False, "error", "truncated"),
        ("stop", False, "stop", None),
        (None, True, "stop", None),
        ("error", True, "error", "provider_error"),
        ("insufficient_system_resource", True, "error", "overloaded"),
        ("MALFORMED_FUNCTION_CALL", True, "error", "malformed_call"),
        ("refusal", True, "content_filter", "content_filter"),
        ("max_tokens", True, "length", None),
        ("tool_calls", True, "stop", None),
        ("something_new", True, "stop", None),
    ],
)
def test_reasons(finish, done, reason, kind):
    """What providers call their reasons is known; the proof of an end is a reason or `[DONE]`."""
    found = outcome(answer(chunk(content="Hi"), chunk(finish), done=done))
    assert (found["text"], found["finish_reason"], found["error"]) == ("Hi", reason, kind)
    assert not found["retry_transparently"]


@pytest.mark.parametrize(
    ("finish", "done", "reason", "kind", "again"),
    [
        ("stop", True, "error", "empty_response", True),
        (None, True, "error", "empty_response", True),
        (None, False, "error", "truncated", True),
        ("length", True, "length", None, False),
        ("content_filter", True, "content_filter", "content_filter", False),
    ],
)
def test_nothing_said(finish, done, reason, kind, again):
    """An answer without anything is no answer (quirk Q48)."""
    found = outcome(answer(chunk(content=""), chunk(finish), done=done))
    assert (found["finish_reason"], found["error"], found["retry_transparently"]) == (reason, kind, again)


def test_reasoning_alone_is_an_answer():
    """A model that only thought was not silent."""
    assert outcome(answer(chunk("stop", reasoning="Hm.")))["finish_reason"] == "stop"


@pytest.mark.parametrize(("kind", "limit"), [("content", 128), ("reasoning_content", 256)])
def test_repetition(kind, limit):
    """A model that is stuck is stopped; the pieces so far stay (quirk Q51)."""
    subject = Assembler()
    messages = [message for _ in range(limit - 1) for message in subject.feed(chunk(**{kind: "abc"}))]
    assert messages[-1].type != "stop"
    messages += subject.feed(chunk(**{kind: "abc"}))
    found = outcome(messages)
    assert found["error"] == "repetition"
    assert (found["text"] or found["reasoning"]) == "abc" * limit


@pytest.mark.parametrize("pieces", [["ab"] * 300, ["abc", "abd"] * 300, (["abc"] * 127 + ["x"]) * 3])
def test_no_repetition(pieces):
    """Short pieces, and pieces that differ, may come as often as they like."""
    assert outcome(answer(*(chunk(content=piece) for piece in pieces)))["error"] is None


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["a\ud83c", "\udf0db"], "a🌍b"),
        (["a\ud83c", "b"], "a\ufffdb"),
        (["a\ud83c"], "a\ufffd"),
        (["\udf0d"], "\ufffd"),
        (["\ud83c", "\ud83c\udf0d"], "\ufffd🌍"),
        (["a\0b", "\0"], "ab"),
        (["\ud83c", "\0", "\udf0d"], "\ufffd\ufffd"),
    ],
)
def test_characters(pieces, text):
    """Halves of a character are joined or replaced, NUL goes (quirk Q91)."""
    assert outcome(answer(*(chunk(content=piece) for piece in pieces)))["text"] == text
    assert outcome(answer(*(chunk(content=piece) for piece in "".join(pieces))))["text"] == text


def test_half_a_character_before_another_kind():
    """A half does not wait longer than its message."""
    messages = answer(chunk(content="a\ud83c"), chunk(reasoning="b"), chunk(content="\udf0d"))
    assert parts(messages) == [("text", "a\ufffd"), ("reasoning", "b"), ("text", "\ufffd")]


def test_half_a_tag_is_dropped_when_the_stream_breaks():
    """What could still have become a tag was never text; nothing was shown."""
    subject = Assembler(think_tags=True)
    shown = subject.feed(chunk(content="<thi"))
    assert parts(shown + subject.end(done=False)) == []
    assert not subject.yielded


def test_half_a_tag_at_the_end_is_text():
    """When the answer is whole, what was held back belongs to it."""
    assert parts(answer(chunk(content="<thi"), chunk("stop"), think_tags=True)) == [("text", "<thi")]


def test_think_tags():
    """Reasoning between tags is reasoning, a signature or not."""
    options = {"starts_in_think": True}
    assert parts(answer(chunk(content="a</think>b"), **options)) == [("reasoning", "a"), ("text", "b")]
    assert parts(answer(chunk(content="<think>a</think>b"))) == [("text", "<think>a</think>b")]


@pytest.mark.parametrize("options", [{}, {"think_tags": True}, {"starts_in_think": True}])
def test_reasoning_by_field_decides(options):
    """When the server took the block out, the text is text; one closer may be left over (quirk Q74)."""
    messages = answer(chunk(reasoning_content="a"), chunk(content="\n</thi"), chunk(content="nk>b"), **options)
    assert parts(messages) == [("reasoning", "a"), ("text", "b")]


@pytest.mark.parametrize("delta", [{"reasoning": "a"}, {"reasoning": "a", "reasoning_content": "a"}])
def test_reasoning_has_two_names(delta):
    """Either name counts, once (quirk Q77)."""
    assert parts(answer(chunk(**delta))) == [("reasoning", "a")]


def test_refusal_is_text():
    """A refusal is what the model says."""
    assert parts(answer(chunk(refusal="No."))) == [("text", "No.")]


def test_content_parts():
    """Typed parts are told apart, unknown ones mean nothing (quirk Q71)."""
    content = [{"type": "thinking", "thinking": "a"}, {"type": "reference", "ids": [1]}, {"type": "text", "text": "b"}]
    assert parts(answer(chunk(content=content))) == [("reasoning", "a"), ("text", "b")]


def thinking(text, signature=None):
    return {"type": "thinking", "thinking": text, "signature": signature}


@pytest.mark.parametrize(
    ("deltas", "reasoning", "blocks"),
    [
        ([([thinking("a")], "a"), ([thinking("b")], "b"), ([thinking("", "s")], "")], "ab", [thinking("ab", "s")]),
        (
            [([thinking("a")], None), ([thinking("b")], None), ([thinking("ab", "s")], None)],
            "ab",
            [thinking("ab", "s")],
        ),
        ([([thinking("ab", "s")], None)], "ab", [thinking("ab", "s")]),
        ([([], "a"), ([], "b"), ([thinking("ab", "s")], None)], "ab", [thinking("ab", "s")]),
        ([([thinking("a", "s")], "a"), ([thinking("b", "t")], "b")], "ab", [thinking("a", "s"), thinking("b", "t")]),
        ([([thinking("a")], "a"), ([thinking("c", "s")], "")], "a", [thinking("c", "s")]),
        ([([thinking("", "s")], None)], None, [thinking("", "s")]),
        ([([{"type": "redacted_thinking", "data": "x"}], None)], None, [{"type": "redacted_thinking", "data": "x"}]),
        ([([thinking("a")], "a")], "a", None),
    ],
)
def test_thinking_blocks(deltas, reasoning, blocks):
    """Signed blocks are kept as they are, and no thinking is doubled (quirks Q78 to Q80)."""
    chunks = [chunk(thinking_blocks=given, reasoning_content=text) for given, text in deltas]
    messages = answer(*chunks, chunk("stop", content="Hi"))
    found = outcome(messages)
    assert (found["reasoning"], found["text"], found["replay"].get("thinking_blocks")) == (reasoning, "Hi", blocks)
    assert [message.type for message in fold(messages)][-2:] == ["text", "stop"]


def test_opaque_data():
    """Other data that a provider wants back is kept under its name (quirks Q81, Q83)."""
    first = {"reasoning_details": [{"x": 1}], "encrypted_content": "a"}
    fields = {"provider_specific_fields": {"thought_signatures": ["s"], "other": 1}}
    messages = answer(chunk(**first), chunk(reasoning_details=[{"x": 2}], encrypted_content="b", **fields))
    expected = {"reasoning_details": [{"x": 1}, {"x": 2}], "encrypted_content": "b"}
    expected["provider_specific_fields"] = {"thought_signatures": ["s"]}
    assert outcome(messages)["replay"] == expected
    assert outcome(messages)["error"] == "empty_response"


def test_opaque_data_does_not_cut_the_text():
    """A signature in mid-text waits for the text's end."""
    fields = {"provider_specific_fields": {"thought_signatures": ["s"]}}
    messages = answer(chunk(content="a"), chunk(content="b", **fields), chunk(content="c"))
    assert parts(messages) == [("text", "abc"), ("reasoning", "")]
