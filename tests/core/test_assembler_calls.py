"""Calls: which piece belongs to which, what they are called, and which may run."""

import pytest

from streamagent._core import assembler as assembler_module
from streamagent._core import calls as calls_module
from streamagent._core.assembler import Assembler
from streamagent.errors import ModelError
from streamagent.message import fold
from tests.quirks import check_stream, outcome

TOOLS = ("add", "weather", "edit", "edit_existing_file")


def call(index=None, call_id=None, name=None, arguments=None, **more):
    """Make an entry of `tool_calls`; what is not named is not in it."""
    entry = {"index": index, "id": call_id, **more}
    function = {"name": name, "arguments": arguments}
    return {key: value for key, value in {**entry, "function": function}.items() if value is not None}


def chunk(*calls, finish=None, **delta):
    return {"choices": [{"index": 0, "delta": {**delta, "tool_calls": list(calls)}, "finish_reason": finish}]}


def finish(reason="tool_calls"):
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def answer(*chunks, tools=TOOLS, done=True):
    subject = Assembler(tools=tools)
    messages = [message for one in chunks for message in subject.feed(one)] + subject.end(done=done)
    check_stream(messages)
    return messages


def called(*chunks, **options):
    """Return the calls as (id, name, arguments, reason why not)."""
    calls = outcome(answer(*chunks, **options))["tool_calls"]
    return [(item["id"], item["name"], item["arguments"], item["invalid"]) for item in calls]


ONE, TWO = '{"a":1}', '{"a":2}'
BOTH = [("c1", "add", {"a": 1}, None), ("c2", "add", {"a": 2}, None)]


REST_ONE, REST_TWO = call(None, None, None, ONE), call(None, None, None, TWO)
NAMED = [call(None, "c1", "add", ""), call(None, "c2", "add", "")]


@pytest.mark.parametrize(
    "lists",
    [
        pytest.param([[call(None, "c1", "add", ONE)], [call(None, "c2", "add", TWO)]], id="ids"),
        pytest.param([[call(0, "c1", "add", ONE)], [call(0, "c2", "add", TWO)]], id="ids at one index"),
        pytest.param([[call("x", "c1", "add", ONE)], [call("y", "c2", "add", TWO)]], id="index is a text"),
        pytest.param(
            [[call(7, "c1", "add", "{"), call(3, "c2", "add", TWO), call(7, None, None, ONE[1:])]], id="index in a list"
        ),
        pytest.param([[call(None, "c1", "add")], [REST_ONE], [call(None, "c2", "add", TWO)]], id="last open"),
        pytest.param([NAMED, [REST_TWO], [call(0, None, None, ONE)]], id="last open in a list"),
        pytest.param([NAMED, [call(None, "c2", None, TWO)], [call(None, "c1", None, ONE)]], id="known ids"),
        pytest.param([NAMED, [REST_ONE, REST_TWO]], id="position"),
    ],
)
def test_two_calls(lists):
    """Index, id, position or order tell two calls apart."""
    assert called(*(chunk(*entries) for entries in lists), finish()) == BOTH


@pytest.mark.parametrize("index", [(0, 1), (None, None)])
def test_shared_id(index):
    """Two calls with one id both run; the second goes by an id of ours (quirk Q13)."""
    first, second = called(chunk(call(index[0], "add", "add", ONE), call(index[1], "add", "add", TWO)))
    assert first == ("add", "add", {"a": 1}, None)
    assert second[0].startswith("call_")
    assert second[1:] == ("add", {"a": 2}, None)


def test_shared_id_goes_on_by_position():
    """Two calls with one id and no index go on by their place in the list."""
    opened = chunk(call(None, "x", "add", "{"), call(None, "x", "add", "{"))
    rest = chunk(call(None, "x", None, '"a":1}'), call(None, "x", None, '"a":2}'))
    assert [item[2] for item in called(opened, rest)] == [{"a": 1}, {"a": 2}]


def test_no_id_at_all():
    """A call without an id gets one, the same on all its fragments (quirk Q09)."""
    messages = answer(chunk(call(0, None, "add", ONE)), chunk(call(1, None, "add", TWO)))
    calls = [message for message in messages if message.type == "tool_call" and message.query]
    ids = [message.query["id"] for message in calls]
    assert len(ids) == 4
    assert len(set(ids)) == 2


def test_two_tools_without_index_or_id():
    """The name of another tool begins another call."""
    found = called(chunk(call(None, None, "add", ONE)), chunk(call(None, None, "weather", TWO)))
    assert [item[1:3] for item in found] == [("add", {"a": 1}), ("weather", {"a": 2})]


def test_same_tool_twice_without_index_or_id_is_refused():
    """When nothing tells two calls apart, none of them runs."""
    [found] = called(chunk(call(None, None, "add", ONE)), chunk(call(None, None, "add", TWO)))
    assert found[1:] == ("add", None, "bad_json")


def test_id_after_the_name():
    """An id that comes late is taken while the call is not open, and only matched afterwards."""
    assert called(chunk(call(0, None, "edit")), chunk(call(0, "c1", None, "{}"))) == [("c1", "edit", {}, None)]
    [found] = called(chunk(call(0, None, "add", "{")), chunk(call(0, "c1", None, "")), chunk(call(0, "c1", None, "}")))
    assert found[0].startswith("call_")
    assert found[1:] == ("add", {}, None)


def test_name_after_the_arguments():
    """A call waits for its name; its arguments are not lost."""
    assert called(chunk(call(0, "c1", None, ONE)), chunk(call(0, None, "add"))) == [BOTH[0]]


@pytest.mark.parametrize(
    ("pieces", "name"),
    [
        (["edit", "_existing", "_file"], "edit_existing_file"),
        (["edit"], "edit"),
        (["edit", "edit"], "edit"),
        (["edit", "_other"], "edit"),
        (["add", "add"], "add"),
        (["weather<|channel|>commentary"], "weather"),
        (["wea", "ther"], "weather"),
    ],
)
def test_name_in_pieces(pieces, name):
    """A piece counts when it leads to a tool; a template's marks are cut off (quirks Q10, Q11, Q20)."""
    chunks = [chunk(call(0, "c1", piece)) for piece in pieces]
    assert called(*chunks, chunk(call(0, None, None, "{}"))) == [("c1", name, {}, None)]
    assert called(*chunks) == [("c1", name, {}, None)]


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (call(0, "c1", "Add", ONE), ("c1", "Add", {"a": 1}, "unknown_tool")),
        (call(0, "c1", "x<|y", ONE), ("c1", "x<|y", {"a": 1}, "unknown_tool")),
        (call(0, "c1", "Add", "{"), ("c1", "Add", None, "unknown_tool")),
        (call(0, "c1", "", ONE), ("c1", "", {"a": 1}, "unknown_tool")),
        (call(0, "c1"), ("c1", "", {}, "unknown_tool")),
        (call(0, "c1", "n" * 300), ("c1", "n" * 256, {}, "unknown_tool")),
    ],
)
def test_unknown_tool(entry, found):
    """A name that was not offered never runs, not even a similar one (quirks Q18, Q19)."""
    assert called(chunk(entry), finish()) == [found]


def test_noise_is_no_call():
    """A piece with neither id nor name leaves no trace, and does not interrupt the text."""
    messages = answer(chunk(content="Hi"), chunk(call(-1, None, None, "{}"), None), chunk(content="!"), finish("stop"))
    assert [(message.type, message.content) for message in fold(messages)] == [("text", "Hi!"), ("stop", "")]


@pytest.mark.parametrize("arguments", [{"a": 1}, ONE])
def test_resend_is_dropped(arguments):
    """The same complete call again is no continuation, also when its arguments are an object (quirk Q12)."""
    assert called(chunk(call(0, "c1", "add", arguments)), chunk(call(0, "c1", "add", arguments))) == [BOTH[0]]


@pytest.mark.parametrize("pieces", [["1", "1"], ["[", "["], ['{"a":"', '{"a":"']])
def test_equal_pieces_are_no_resend(pieces):
    """Only a complete object can be a resend."""
    messages = answer(*(chunk(call(0, "c1", "add", piece)) for piece in pieces))
    assert fold(messages)[0].content == "".join(pieces)


@pytest.mark.parametrize("reason", ["length", "MAX_TOKENS", "content_filter", "SAFETY"])
def test_nothing_of_a_cut_answer_runs(reason):
    """A complete call does not run either, and one whose name is open is shown too (quirk Q38)."""
    found = called(chunk(call(0, "c1", "add", ONE), call(1, "c2", "edit")), finish(reason))
    assert found == [("c1", "add", None, "truncated"), ("c2", "edit", None, "truncated")]


@pytest.mark.parametrize("reasons", [["length", "stop"], ["stop", "length"], ["tool_calls", "length", "tool_calls"]])
def test_gravest_reason_holds(reasons):
    """A second reason does not make a cut answer whole."""
    messages = answer(chunk(call(0, "c1", "add", ONE)), *map(finish, reasons))
    assert outcome(messages)["finish_reason"] == "length"


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "end_turn", "eos", "", None])
def test_calls_decide_the_reason(reason):
    """Calls of a whole answer run, whatever the provider calls the end (rule 5)."""
    messages = answer(chunk(call(0, "c1", "add", ONE)), finish(reason))
    assert outcome(messages)["finish_reason"] == "tool_calls"
    assert messages[-1].query.get("finish_inferred") is (None if reason else True)


def test_unseen_calls_stay_unseen_after_an_error():
    """A call that nobody saw does not stand in the way of asking again."""
    subject = Assembler(tools=TOOLS)
    shown = subject.feed(chunk(call(0, "c1", "edit")))
    messages = shown + subject.fail(ModelError("reset", kind="connection", retryable=True))
    assert [message.type for message in messages] == ["stop"]
    assert not subject.yielded


def test_fragments_of_a_call():
    """A call opens with its tool and id, streams, and is closed at the end with what may be done."""
    chunks = (
        chunk(content="So:"),
        chunk(call(0, "c1", "add")),
        chunk(call(0, None, None, '{"a":')),
        chunk(call(0, None, None, "1,}")),
    )
    messages = answer(*chunks, finish())
    text, closing, opened, first, second, closed, _ = messages
    assert (text.type, text.more, closing.id, closing.more) == ("text", True, text.id, False)
    assert (opened.content, opened.query, opened.more) == ("", {"tool": "add", "id": "c1"}, True)
    assert (first.content, first.query, second.content) == ('{"a":', None, "1,}")
    expected = {"tool": "add", "id": "c1", "args": {"a": 1}, "repaired": "trailing_comma"}
    assert (closed.content, closed.query, closed.more) == ("", expected, False)
    assert {message.id for message in (opened, first, second, closed)} == {opened.id}


def test_provider_data_of_a_call():
    """What a provider wants back with a call is kept as it is (quirk Q81)."""
    google = {"google": {"thought_signature": "s"}}
    entry = call(0, "c1", "add", ONE, extra_content=google)
    entry["function"]["provider_specific_fields"] = {"thought_signature": "t"}
    [found, _] = fold(answer(chunk(entry)))
    expected = {"extra_content": google, "provider_specific_fields": {"thought_signature": "t"}}
    assert found.query["provider"] == expected


def test_halves_of_a_character_in_arguments():
    """Halves are joined over a border; one that stays alone is replaced."""
    messages = answer(chunk(call(0, "c1", "add", '{"a":"\ud83c')), chunk(call(0, None, None, '\udf0d\ud83c"}')))
    assert fold(messages)[0].content == '{"a":"🌍\ufffd"}'
    messages = answer(chunk(call(0, "c1", "add", "{}\ud83c")))
    assert fold(messages)[0].content == "{}\ufffd"


@pytest.mark.parametrize("size", [1, 7, 10])
def test_arguments_over_the_limit(monkeypatch, size):
    """Endless arguments are refused and not kept."""
    monkeypatch.setattr(calls_module, "ARGUMENTS_LIMIT", 20)
    text = '{"a": "' + "x" * 20 + '"}'
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    [found, _] = fold(answer(chunk(call(0, "c1", "add", "")), *(chunk(call(0, None, None, piece)) for piece in pieces)))
    assert (found.content, found.query["args"], found.query["invalid"]) == (text[:20], None, "bad_json")


def test_too_many_calls():
    """A stream of calls without end is refused, and changes nothing."""
    subject = Assembler(tools=TOOLS)
    for number in range(calls_module.CALLS_LIMIT - 1):
        subject.feed(chunk(call(number, f"c{number}", "add", "{}")))
    with pytest.raises(ModelError) as caught:
        subject.feed(chunk(call(-1, "x", "add"), call(-2, "y", "add"), content="Hi"))
    assert caught.value.kind == "protocol"
    messages = subject.end(done=True)
    assert len(messages) == calls_module.CALLS_LIMIT
    assert messages[-1].query["reason"] == "tool_calls"


def test_too_much_provider_data(monkeypatch):
    """Opaque data is bounded."""
    monkeypatch.setattr(assembler_module, "OPAQUE_LIMIT", 100)
    subject = Assembler(tools=TOOLS)
    subject.feed(chunk(call(0, "c1", "add", "{}", extra_content={"x": "y" * 60})))
    with pytest.raises(ModelError, match="more than 100 bytes"):
        subject.feed(chunk(call(0, "c1", "add", "", extra_content={"x": "y" * 60})))
