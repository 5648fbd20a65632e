"""Lines of exported sessions: what is taken, and that all else is refused with its line's number."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamagent._core import archive
from streamagent._core.archive import (
    ATTEMPTS_LIMIT,
    DEPTH_LIMIT,
    LINE_LIMIT,
    PIECE,
    call_line,
    encode,
    message_line,
)
from streamagent._core.archive_reader import Reader
from streamagent.errors import ArchiveError
from streamagent.message import Message
from streamagent.records import CallRecord, Mark

TIME = "2020-02-02T02:02:02.222222+00:00"
HEADER = {"streamagent": 1, "session": "s", "created_at": TIME, "modified_at": TIME, "messages": 1}
ROW = {"id": "a", "sequence": 1, "role": "user", "type": "text", "content": "hi", "created_at": TIME}
CALL_ROW = {**ROW, "role": "assistant", "type": "tool_call", "waits": True}
RESULT = {**ROW, "id": "r", "sequence": 2, "role": "tool", "type": "tool_result", "query": {"call": "a"}}
WAITING = {**{name: value for name, value in ROW.items() if name != "sequence"}, "id": "w", "inbox": True}


def signed(*lines, **counts):
    """A file of these lines, with a right last one."""
    data = [line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines]
    rows = [line for line in lines if isinstance(line, dict)]
    end = {
        "end": True,
        "messages": sum("sequence" in row for row in rows),
        "inbox": sum("inbox" in row for row in rows),
        "calls": sum("call" in row for row in rows),
        "lines": len(lines),
        "sha256": hashlib.sha256(b"".join(data)).hexdigest(),
    }
    return [*data, json.dumps({**end, **counts}).encode() + b"\n"]


def read(lines):
    return list(Reader().read(lines))


def refused(lines):
    with pytest.raises(ArchiveError) as caught:
        read(lines)
    return str(caught.value)


def without(line, *names):
    return {name: value for name, value in line.items() if name not in names}


def test_what_the_lines_say_is_what_is_given():
    rows = [{**CALL_ROW, "more": True}, {"id": "a", "content": "!"}, {**WAITING, "client_key": "k"}]
    outcome = {"id": "r", "content": "15", "query": {"call": "a"}}
    call, rest, waiting, record = read(signed(HEADER, *rows, {"call": "a", "attempts": 2, "outcome": outcome}))
    assert [(message.id, message.content, message.more) for message, _ in (call, rest)] == [
        ("a", "hi", True),
        ("a", "!", False),
    ]
    assert call[1] == rest[1] == Mark(id="a", waits=True)
    assert (waiting[0].sequence, waiting[1]) == (None, Mark(id="w", client_key="k"))
    assert isinstance(record, CallRecord)
    assert (record.call, record.attempts, record.outcome.content) == ("a", 2, "15")


def test_line_ends_of_windows_and_a_missing_last_one_do_no_harm():
    lines = [line.replace(b"\n", b"\r\n") for line in signed(HEADER, ROW)]
    lines[-1] = lines[-1].rstrip()
    assert len(read(lines)) == 1


@pytest.mark.parametrize("kept", range(3))
def test_a_file_that_was_cut_off_is_refused(kept):
    assert f"the file ends with line {kept}, before its last one" in refused(signed(HEADER, ROW)[:kept])


@pytest.mark.parametrize("size", range(2, 60, 7))
def test_a_last_line_that_was_cut_off_is_refused(size):
    *lines, end = signed(HEADER, ROW)
    assert refused([*lines, end[:-size]]).startswith("line 3: it is not JSON")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_line_that_is_missing_changed_or_there_twice_is_refused(number):
    header = {**HEADER, "messages": 2}
    lines = signed(header, ROW, {**ROW, "id": "b", "sequence": 2, "content": "ho"})
    changed = lines[number].replace(b"hi", b"hu").replace(b"ho", b"hu").replace(b'"s"', b'"t"')
    for other in ([], [lines[number]] * 2, [changed]):
        assert refused([*lines[:number], *other, *lines[number + 1 :]]).startswith("line ")


@pytest.mark.parametrize("count", ["messages", "inbox", "calls", "lines"])
def test_counts_of_the_last_line_must_be_right(count):
    assert f"({count})" in refused(signed(HEADER, ROW, **{count: 7}))


def test_the_last_line_names_what_is_odd():
    assert "(sha256); get the file again" in refused(signed(HEADER, ROW, sha256="0" * 64))
    assert "1 messages, not the header's 2" in refused(signed({**HEADER, "messages": 2}, ROW))


def test_nothing_stands_behind_the_last_line():
    assert refused([*signed(HEADER, ROW), b"\n"]).startswith("line 4: nothing stands behind")


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({}, "no exported session"),
        (b"hello\n", "not JSON"),
        (b"[1]\n", "not a JSON object"),
        (b"\xff\n", "not JSON"),
        ({**HEADER, "streamagent": 2}, "version 2 is not known, only 1; update"),
        ({**HEADER, "streamagent": "x"}, "version 'x' is not known"),
        ({**HEADER, "streamagent": True}, "version True is not known"),
        ({**HEADER, "streamagent": 1.0}, "version 1.0 is not known"),
        (
            b'{"streamagent": 1, "session": "\\ud800", "session": "s", "n": 1234567890123456789}\n',
            "the key 'session' twice",
        ),
        (json.dumps(HEADER).replace("{", '{"session": "t", ').encode() + b"\n", "the key 'session' twice"),
        ({**HEADER, "extra": 1}, "a field 'extra'"),
        (without(HEADER, "session"), "no field 'session'"),
        ({**HEADER, "session": 7}, "'session' is text, not 7"),
        ({**HEADER, "session": None}, "'session' cannot be None"),
        ({**HEADER, "created_at": "soon"}, "'created_at' is a time"),
        ({**HEADER, "modified_at": "0001-01-01T00:00:00+23:00"}, "'modified_at' is a time"),
        ({**HEADER, "messages": -1}, "'messages' is a number from 0, not -1"),
        ({**HEADER, "messages": True}, "'messages' is a number from 0, not True"),
    ],
)
def test_an_odd_header_is_refused(header, text):
    said = refused(signed(header, ROW))
    assert said.startswith("line 1: ")
    assert text in said


@pytest.mark.parametrize(
    ("row", "text"),
    [
        *((without(ROW, name), f"no field {name!r}") for name in ("id", "role", "type", "content", "created_at")),
        ({**ROW, "session": "t"}, "a field 'session', which version 1 does not; leave it out"),
        ({**ROW, "id": 7}, "'id' cannot be 7"),
        ({**ROW, "id": None}, "'id' cannot be None"),
        ({**ROW, "role": "root"}, "'role' cannot be 'root'"),
        ({**ROW, "type": ["text"]}, "'type' cannot be ['text']"),
        ({**ROW, "content": {}}, "'content' cannot be {}"),
        ({**ROW, "query": [1]}, "'query' cannot be [1]"),
        ({**ROW, "prev": 1}, "'prev' cannot be 1"),
        ({**ROW, "attempt": "1"}, "'attempt' cannot be '1'"),
        ({**ROW, "attempt": True}, "'attempt' cannot be True"),
        ({**ROW, "more": 1}, "'more' cannot be 1"),
        ({**ROW, "more": False}, "'more' cannot be False; leave it out"),
        ({**ROW, "waits": "yes"}, "'waits' cannot be 'yes'"),
        ({**ROW, "client_key": 1}, "'client_key' is text, not 1"),
        ({**ROW, "created_at": 1}, "'created_at' is a time in ISO 8601, not 1"),
        ({**ROW, "created_at": "yesterday"}, "'created_at' is a time"),
        ({**ROW, "sequence": 2}, "the message with the sequence 1 comes here; keep the order"),
        ({**ROW, "sequence": 0}, "'sequence' is a number from 1, not 0"),
        ({**ROW, "sequence": "1"}, "'sequence' is a number from 1, not '1'"),
        (without(ROW, "sequence"), "'sequence' is a number from 1, not None"),
        ({**ROW, "inbox": True}, "'inbox' is true, and then it has no sequence"),
        ({**WAITING, "inbox": 1}, "'inbox' is true, and then it has no sequence"),
        ({**ROW, "content": "é" * (PIECE // 2) + "x"}, "more than 65536 bytes"),
    ],
)
def test_an_odd_row_is_refused(row, text):
    said = refused(signed(HEADER, row))
    assert said.startswith("line 2: ")
    assert text in said


@pytest.mark.parametrize(
    ("type_", "roles"),
    [
        ("tool_call", ["assistant"]),
        ("stop", ["assistant"]),
        ("reasoning", ["assistant"]),
        ("tool_result", ["tool"]),
        ("progress", ["tool"]),
        ("cancel", ["user"]),
        ("approval", ["tool", "user"]),
        ("text", ["system", "user", "assistant", "tool"]),
        ("data", ["system", "user", "assistant", "tool"]),
    ],
)
def test_a_forged_role_is_refused(type_, roles):
    for role in ("system", "user", "assistant", "tool"):
        lines = signed(HEADER, {**ROW, "type": type_, "role": role, "query": {"cut": "aborted"}})
        if role in roles:
            assert read(lines)[0][0].role == role
        else:
            assert f"a {type_} has the role {' or '.join(roles)}, not {role!r}" in refused(lines)
            with pytest.raises(ArchiveError, match="message m: a "):
                message_line(Message(id="m", type=type_, role=role), None)


@pytest.mark.parametrize(
    ("rows", "number", "text"),
    [
        ([WAITING, ROW], 3, "with the sequence 1 comes here"),
        ([without(CALL_ROW, "waits")], 3, "the call of line 2 neither waits nor has a result"),
        ([without(CALL_ROW, "waits"), {**RESULT, "query": {"call": "b"}}], 4, "the call of line 2 neither"),
        ([{**RESULT, "sequence": 1}, {**without(CALL_ROW, "waits"), "sequence": 2}], 4, "the call of line 3 neither"),
        ([{**WAITING, "more": True}], 3, "message w waits in the inbox and is not whole"),
        ([{**WAITING, "more": True}, {**WAITING, "id": "v"}], 3, "message w waits in the inbox and is not whole"),
        ([{**WAITING, "more": True}, {"call": "a", "attempts": 1}], 3, "message w waits in the inbox"),
        ([CALL_ROW, {"call": "a", "attempts": 1}, {**ROW, "sequence": 2}], 4, "before what is known of calls"),
        ([{**CALL_ROW, "more": True}, {"call": "a", "attempts": 1}, {"id": "a", "content": ""}], 4, "no field"),
        ([ROW, {"id": "a", "content": "behind its end"}], 3, "no field"),
        ([{**ROW, "more": True}, {"id": "a"}], 3, "no field 'content'"),
        ([{**ROW, "more": True}, {"id": "a", "content": "b", "query": {}}], 3, "a field 'query'"),
        ([{**ROW, "more": True}, {"id": "a", "content": 1}], 3, "'content' is text, not 1"),
        ([{**ROW, "more": True}, {"id": "a", "content": "x" * (PIECE + 1)}], 3, "more than 65536 bytes"),
        ([CALL_ROW, {"call": "a"}], 3, "no field 'attempts'"),
        ([CALL_ROW, {"call": 1, "attempts": 1}], 3, "'call' is text, not 1"),
        ([CALL_ROW, {"call": "a", "attempts": 0}], 3, "'attempts' is a number from 1, not 0"),
        ([CALL_ROW, {"call": "a", "attempts": ATTEMPTS_LIMIT + 1}], 3, "1001 attempts are more than a call has"),
        ([CALL_ROW, {"call": "a", "attempts": 1, "outcome": "15"}], 3, "'outcome' is an object"),
        ([CALL_ROW, {"call": "a", "attempts": 1, "outcome": {"id": "r"}}], 3, "no field 'content'"),
        ([CALL_ROW, {"call": "a", "attempts": 1, "outcome": {"id": "r", "content": 15}}], 3, "'content' cannot be 15"),
        ([CALL_ROW, {"call": "a", "attempts": 1, "outcome": {"id": "r", "content": "", "role": "system"}}], 3, "role"),
    ],
)
def test_lines_that_do_not_follow_one_another_are_refused(rows, number, text):
    said = refused(signed(HEADER, *rows))
    assert said.startswith(f"line {number}: ")
    assert text in said


@pytest.mark.parametrize(
    "rows",
    [
        [without(CALL_ROW, "waits"), RESULT],
        [without(CALL_ROW, "waits"), {"type": "unreadable", "query": {"unreadable": "spoilt"}}],
        [{**without(CALL_ROW, "waits"), "query": {"cut": "crashed"}}, {}],
        [{**without(CALL_ROW, "waits"), "more": True}, {}],
    ],
)
def test_a_call_that_has_a_result_or_never_will_need_not_wait(rows):
    call, other = rows
    assert len(read(signed({**HEADER, "messages": 2}, call, {**ROW, "id": "r", "sequence": 2, **other}))) == 2


def test_what_is_at_a_limit_is_taken():
    deep = json.loads("[" * (DEPTH_LIMIT - 2) + "]" * (DEPTH_LIMIT - 2))
    rows = [
        {**CALL_ROW, "content": "é" * (PIECE // 2), "query": {"deep": deep}},
        {"call": "a", "attempts": ATTEMPTS_LIMIT},
    ]
    assert len(read(signed(HEADER, *rows))) == 2


@pytest.mark.parametrize("levels", [DEPTH_LIMIT - 1, 10_000, 1_000_000])
@pytest.mark.parametrize("number", ["1", "1" * 30])
def test_a_line_that_is_too_deep_is_refused(levels, number):
    """Also by the reader of long numbers, which is another one."""
    deep = json.dumps(without(ROW, "content"))[:-1] + ', "query": {"a": ' + "[" * levels + number + "]" * levels + "}}"
    assert refused(signed(HEADER, deep.encode() + b"\n")).startswith("line 2: it ")


def test_a_line_is_as_long_as_the_limit_and_no_longer(monkeypatch):
    monkeypatch.setattr(archive, "LINE_LIMIT", 1000)
    row = {**ROW, "query": {"x": ""}}
    row["query"]["x"] = "x" * (1000 - len(json.dumps(row)))
    assert len(read(signed(HEADER, row))) == 1
    row["query"]["x"] += "x"
    assert "line 2: it has more than 1000 bytes" in refused(signed(HEADER, row))


def test_what_could_not_be_read_again_is_not_written(monkeypatch):
    deep = json.loads("[" * (DEPTH_LIMIT - 1) + "]" * (DEPTH_LIMIT - 1))
    with pytest.raises(ArchiveError, match="message m cannot be exported: it is nested more than 256 levels"):
        encode(message_line(Message(id="m", sequence=1, query={"deep": deep}), None))
    monkeypatch.setattr(archive, "LINE_LIMIT", 1000)
    with pytest.raises(ArchiveError, match="message m cannot be exported: it has more than 1000 bytes"):
        encode(message_line(Message(id="m", sequence=1, content="x" * 1000), None))


def test_more_attempts_of_a_call_than_can_be_read_are_written_as_so_many():
    assert call_line(CallRecord(call="c", attempts=ATTEMPTS_LIMIT + 1))["attempts"] == ATTEMPTS_LIMIT


def test_the_limit_of_a_line_holds_what_a_store_takes_in_one():
    """Content of control characters takes six bytes each in JSON."""
    assert len(encode(message_line(Message(sequence=1, content="\x01" * PIECE), None))) < LINE_LIMIT / 16


@given(st.lists(st.binary(max_size=80) | st.sampled_from(signed(HEADER, ROW, WAITING)), max_size=6))
def test_garbage_is_read_or_refused_with_the_right_error(lines):
    try:
        read(lines)
    except ArchiveError as error:
        assert "line " in str(error)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*ROW, "query", "more", "inbox", "waits", "client_key", "prev"]), values))
def test_a_row_of_any_values_is_read_or_refused_with_the_right_error(fields):
    try:
        read(signed(HEADER, {**ROW, **fields}))
    except ArchiveError as error:
        assert "line " in str(error)
