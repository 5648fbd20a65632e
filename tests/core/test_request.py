"""Requests built from stored messages."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamagent._core.profiles import PROFILES, Profile, lint, profile_for
from streamagent._core.request import CUT_MARK, NO_OUTPUT, NO_RESULT, RequestBuilder, build_request
from streamagent.message import Message, split

MISTRAL = PROFILES["mistral"]
CLAUDE = PROFILES["claude"]


def user(text="Hi"):
    return Message.user(text)


def said(text, **fields):
    return Message(content=text, **fields)


def call(call_id="c1", tool="stock", args=None, content="", **fields):
    query = {"tool": tool, "id": call_id, "args": {} if args is None else args}
    return Message(type="tool_call", content=content, query=query, **fields)


def result(of, content="15", **query):
    query = {"tool": "stock", "id": of.query["id"], "call": of.id, **query}
    return Message(role="tool", type="tool_result", content=content, query={k: v for k, v in query.items() if v})


def stop(reason="stop", **query):
    return Message.stop(reason, **query)


def roles(request):
    return [entry["role"] for entry in request]


def test_texts_keep_their_roles_and_order():
    request = build_request([Message.system("Be brief."), user("Hi"), said("Hello"), user("Bye")])
    assert request == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]


def test_text_and_calls_of_a_turn_are_one_entry_with_the_result_behind():
    asked = call(args={"product": "mug"})
    request = build_request([user(), said("Let me look. "), asked, stop("tool_calls"), result(asked), said("15.")])
    function = {"name": "stock", "arguments": '{"product":"mug"}'}
    assert request[1:] == [
        {
            "role": "assistant",
            "content": "Let me look. ",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "15"},
        {"role": "assistant", "content": "15."},
    ]


def test_results_stand_in_call_order_directly_behind_their_calls():
    first, second = call("a"), call("b")
    request = build_request([user(), first, second, stop(), user("and?"), result(second, "2"), result(first, "1")])
    assert [entry.get("tool_call_id", entry["role"]) for entry in request] == ["user", "assistant", "a", "b", "user"]
    assert [entry["content"] for entry in request[2:4]] == ["1", "2"]


def test_an_id_that_is_used_again_pairs_within_its_own_turn():
    """Quirk Q14."""
    first, second = call("call-1"), call("call-1")
    rows = [user(), first, stop(), result(first, "old"), said("ok"), user(), second, stop(), result(second, "new")]
    request = build_request(rows)
    results = [entry for entry in request if entry["role"] == "tool"]
    assert [entry["content"] for entry in results] == ["old", "new"]
    assert lint(request) == []


def test_a_result_without_a_message_id_answers_the_nearest_open_call():
    first, second = call("call-1"), call("call-1")
    rows = [user(), first, result(first, "old", call=None), second, result(second, "new", call=None)]
    assert [entry["content"] for entry in build_request(rows) if entry["role"] == "tool"] == ["old", "new"]


def test_a_result_without_a_message_id_skips_calls_that_were_answered():
    first, second = call("x"), call("x")
    rows = [user(), first, second, result(second, "2"), result(first, "1", call=None)]
    assert [entry["content"] for entry in build_request(rows) if entry["role"] == "tool"] == ["1", "2"]


def test_the_first_of_two_results_counts():
    asked = call()
    request = build_request([user(), asked, result(asked, "first"), result(asked, "second")])
    assert [entry["content"] for entry in request if entry["role"] == "tool"] == ["first"]


def test_a_result_without_a_call_is_left_out():
    trimmed = call()
    assert roles(build_request([result(trimmed), user(), said("Hello")])) == ["user", "assistant"]


def test_a_call_without_a_result_gets_one_that_says_so():
    assert build_request([user(), call(), stop("tool_calls"), user("Go on")])[2]["content"] == NO_RESULT


@pytest.mark.parametrize(("content", "sent"), [("", NO_OUTPUT), (" \n", NO_OUTPUT), ("x", "x")])
def test_an_empty_result_says_so(content, sent):
    asked = call()
    assert build_request([user(), asked, result(asked, content)])[2]["content"] == sent


@pytest.mark.parametrize(
    ("content", "args", "sent"),
    [
        ('{"a": 1}', None, '{"a": 1}'),
        ("", None, "{}"),
        ('{"a": ', None, "{}"),
        ("[1]", None, "{}"),
        ("null", None, "{}"),
        ("{'a': 1,}", {"a": 1}, '{"a":1}'),
        ("", {"n": 12345678901234567890123}, '{"n":12345678901234567890123}'),
    ],
)
def test_arguments_are_always_the_text_of_an_object(content, args, sent):
    """Quirks Q25, Q30, Q39."""
    row = Message(type="tool_call", content=content, query={"tool": "t", "id": "c", "args": args})
    assert build_request([user(), row])[1]["tool_calls"][0]["function"]["arguments"] == sent


@pytest.mark.parametrize("text", ["", " ", "\n\n"])
def test_blank_texts_are_left_out(text):
    """Quirk Q92."""
    assert roles(build_request([user(), said(text), user(text), said("Hello")])) == ["user", "assistant"]


def test_reasoning_and_what_is_no_message_for_a_model_are_left_out():
    skipped = [
        Message(type=kind, content="x") for kind in ("reasoning", "progress", "approval", "cancel", "data", "new")
    ]
    assert roles(build_request([user(), *skipped, said("Hello"), stop()])) == ["user", "assistant"]


def test_of_several_attempts_the_last_is_sent():
    rows = [user(), said("Half an", attempt=1), call("lost"), stop("error"), said("An answer", attempt=2), stop()]
    assert build_request(rows)[1:] == [{"role": "assistant", "content": "An answer"}]


def test_a_turn_that_ended_well_is_not_superseded_by_the_next():
    rows = [user(), said("One.", attempt=1), stop(), said("Two.", attempt=2), stop()]
    assert [entry["content"] for entry in build_request(rows)[1:]] == ["One.", "Two."]


def test_an_attempt_that_a_crash_has_cut_is_not_sent_to_the_next_one():
    """The model is asked what it would have been asked without the crash."""
    early, lost = call(), call("c2")
    over = [result(lost, cut="resumed"), stop("aborted", cut="resumed")]
    before = [user(), early, stop("tool_calls"), result(early)]
    for attempt in ([said("Half"), lost, *over], [stop("aborted", cut="resumed")]):
        assert build_request([*before, *attempt]) == build_request(before)
    asked = build_request([*before, said("Half"), *over, said("Whole.", attempt=2), stop()])
    assert asked == build_request([*before, said("Whole."), stop()])


def test_a_lower_attempt_starts_a_new_turn():
    rows = [user(), said("One.", attempt=2), said("Two.", attempt=1)]
    assert [entry["content"] for entry in build_request(rows)[1:]] == ["One.", "Two."]


@pytest.mark.parametrize("cut", [said("Half a", query={"cut": "aborted"}), said("Half a", more=True)])
def test_a_cut_text_says_so(cut):
    assert build_request([user(), cut])[1]["content"] == f"Half a\n{CUT_MARK}"


def test_fragments_are_joined():
    builder = RequestBuilder()
    for fragment in split(user("a long prompt"), 3):
        builder.add(fragment)
    assert builder.finish() == [{"role": "user", "content": "a long prompt"}]


def test_system_messages_stand_at_the_head_in_order():
    request = build_request([Message.system("A"), user(), Message.system("B")])
    assert [entry["content"] for entry in request] == ["A", "B", "Hi"]


@pytest.mark.parametrize(("profile", "length"), [(Profile(), 40), (PROFILES["openai/"], 40), (MISTRAL, 9)])
def test_an_id_that_the_provider_refuses_is_hashed_for_call_and_result_alike(profile, length):
    """Quirks Q96, Q97."""
    asked = call("call with spaces " * 9)
    request = build_request([user(), asked, result(asked)], profile)
    sent = request[1]["tool_calls"][0]["id"]
    assert re.fullmatch(f"[0-9A-Za-z]{{{length}}}", sent)
    assert request[2]["tool_call_id"] == sent
    assert build_request([user(), asked, result(asked)], profile) == request


def test_an_id_that_the_provider_takes_is_kept():
    asked = call("abcDEF123")
    assert build_request([user(), asked], MISTRAL)[1]["tool_calls"][0]["id"] == "abcDEF123"


@pytest.mark.parametrize(("name", "sent"), [("my tool!", "my_tool_"), ("x" * 80, "x" * 64), ("", "tool")])
def test_a_tool_name_is_made_to_match(name, sent):
    assert build_request([user(), call(tool=name)])[1]["tool_calls"][0]["function"]["name"] == sent


def test_neighbours_of_one_role_are_merged_when_the_profile_asks():
    """Quirk Q93."""
    picture = Message(role="user", type="image", query={"url": "https://example.com/a.png"})
    asked = call("abcDEF123")
    rows = [Message.system("A"), Message.system("B"), user("1"), user("2"), picture, said("x"), stop(), asked]
    request = build_request([*rows, result(asked)], MISTRAL)
    assert roles(request) == ["system", "user", "assistant", "tool"]
    assert request[0]["content"] == "A\n\nB"
    assert request[1]["content"][0] == {"type": "text", "text": "1\n\n2"}
    assert request[1]["content"][1]["type"] == "image_url"
    assert request[2]["content"] == "x"


def test_merged_calls_need_no_text():
    asked = [call("abcDEF123"), call("abcDEF124")]
    rows = [user(), said("Let me look."), stop(), asked[0], asked[1]]
    assert build_request(rows, MISTRAL)[1]["content"] == "Let me look."


def test_pictures_and_texts_are_merged_as_parts():
    first, second = (Message(role="user", type="image", query={"url": "https://example.com/a.png"}) for _ in range(2))
    parts = build_request([first, user("2"), second], MISTRAL)[0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "text", "image_url"]


@pytest.mark.parametrize(
    ("query", "url"),
    [
        ({"mime": "image/png", "url": "https://example.com/a.png"}, "https://example.com/a.png"),
        ({"mime": "image/jpeg", "data": "QUJD"}, "data:image/jpeg;base64,QUJD"),
        ({"data": "QUJD"}, "data:image/png;base64,QUJD"),
    ],
)
def test_an_image_of_the_user_is_a_part(query, url):
    request = build_request([Message(role="user", type="image", query=query)])
    assert request[0]["content"] == [{"type": "image_url", "image_url": {"url": url}}]


@pytest.mark.parametrize(
    ("message", "note"),
    [
        (Message(role="user", type="file", query={"name": "a.pdf"}), "[file left out: a.pdf]"),
        (Message(role="user", type="image", query={"mime": "image/png"}), "[image left out: image/png]"),
        (Message(role="user", type="file"), "[file left out: unnamed]"),
    ],
)
def test_what_cannot_be_sent_is_named(message, note):
    assert build_request([message]) == [{"role": "user", "content": note}]


def thought(**provider):
    return Message(type="reasoning", content="Let me check", query={"provider": provider} if provider else None)


BLOCKS = [{"type": "thinking", "thinking": "Let me check", "signature": "sig-1"}]


def test_signed_thinking_is_given_back_in_the_tool_loop():
    """Quirk Q78."""
    asked = call()
    rows = [user(), thought(thinking_blocks=BLOCKS), asked, stop(model="anthropic/claude-x"), result(asked)]
    assert build_request(rows, CLAUDE)[1]["thinking_blocks"] == BLOCKS


@pytest.mark.parametrize(
    ("profile", "model", "later"),
    [
        (Profile(), "claude-x", []),
        (CLAUDE, "gemini/flash", []),
        (CLAUDE, "claude-x", [said("15"), stop(), user("Bye")]),
    ],
    ids=["not wanted", "of another model", "an older turn"],
)
def test_signed_thinking_is_not_given_back(profile, model, later):
    asked = call()
    rows = [user(), thought(thinking_blocks=BLOCKS), asked, stop(model=model), result(asked), *later]
    assert "thinking_blocks" not in build_request(rows, profile)[1]


def test_plain_reasoning_is_given_back_where_it_is_wanted():
    """Quirk Q82."""
    asked = call()
    rows = [user(), thought(), asked, stop(model="deepseek/r1"), result(asked)]
    assert build_request(rows, profile_for("deepseek/r1"))[1]["reasoning_content"] == "Let me check"


def test_a_signature_on_a_call_goes_back_with_the_call():
    """Quirk Q81."""
    extra = {"google": {"thought_signature": "s"}}
    asked = call()
    asked = Message(type="tool_call", query={**asked.query, "provider": {"extra_content": extra, "other": 1}})
    sent = build_request([user(), asked], profile_for("gemini/flash"))[1]["tool_calls"][0]
    assert sent["extra_content"] == extra
    assert "other" not in sent


def test_opaque_data_that_is_no_list_is_given_back_as_it_is():
    data = {"thought_signatures": ["s"]}
    rows = [user(), thought(provider_specific_fields=data), said("x")]
    assert build_request(rows, profile_for("gemini/flash"))[1]["provider_specific_fields"] == data


def test_a_turn_with_nothing_to_send_is_left_out():
    assert roles(build_request([user(), thought(thinking_blocks=BLOCKS), stop("length")], CLAUDE)) == ["user"]


def test_a_text_in_the_role_of_a_tool_is_left_out():
    assert roles(build_request([user(), Message(role="tool", content="x"), stop()])) == ["user"]


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([{"role": "robot", "content": "x"}], "unknown role"),
        ([{"role": "user"}], "neither content nor calls"),
        ([{"role": "user", "content": " "}], "empty content"),
        ([{"role": "user", "content": "\ud800"}], "not JSON"),
        ([{"role": "user", "content": "x"}, {"role": "system", "content": "x"}], "system after user"),
        ([{"role": "tool", "tool_call_id": "a", "content": "x"}], "out of order or without a call"),
        (
            [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "t", "arguments": "{}"}}]}],
            "end: calls",
        ),
        (
            [
                {"role": "assistant", "tool_calls": [{"id": "a b", "function": {"name": "t t", "arguments": "{"}}]},
                {"role": "user", "content": "x"},
            ],
            "have no result",
        ),
    ],
)
def test_lint_finds(entries, problem):
    assert any(problem in found for found in lint(entries))


def test_lint_looks_into_calls():
    entry = {"role": "assistant", "tool_calls": [{"id": "a b", "function": {"name": "t t", "arguments": "[]"}}]}
    problems = " ".join(lint([entry, {"role": "tool", "tool_call_id": "a b", "content": "x"}]))
    assert "repeated or malformed" in problems
    assert "tool name" in problems
    assert "no JSON object" in problems


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda v: st.lists(v, max_size=2)
)
ids = st.sampled_from(["a", "b", "call 1", "x" * 70, ""])


@st.composite
def histories(draw):
    rows = []
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["text", "reasoning", "tool_call", "tool_result", "image", "file", "stop", "data"]))
        calls = [row for row in rows if row.type == "tool_call"]
        query = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "id": ids | st.none(),
                    "tool": st.text(max_size=5),
                    "args": st.dictionaries(st.text(max_size=3), json_values, max_size=2) | json_values,
                    "reason": st.sampled_from(["stop", "error", "tool_calls"]),
                    "cut": st.just("aborted"),
                    "url": st.just("https://example.com/a.png"),
                    "call": st.sampled_from([row.id for row in calls] or ["gone"]),
                    "provider": st.dictionaries(
                        st.sampled_from(["thinking_blocks", "x"]), st.lists(json_values), max_size=2
                    ),
                },
            )
        )
        rows.append(
            Message(
                role=draw(st.sampled_from(["system", "user", "assistant", "tool"])),
                type=kind,
                content=draw(st.text(max_size=4) | st.sampled_from(['{"a":1}', "\ud800", "\0"])),
                query=query,
                more=draw(st.booleans()) and kind != "stop",
                attempt=draw(st.integers(1, 3)),
            )
        )
    return rows


@settings(max_examples=150, deadline=None)
@given(histories(), st.sampled_from([Profile(), *PROFILES.values()]))
def test_any_history_makes_a_request_that_lint_finds_nothing_wrong_with(rows, profile):
    """I4."""
    assert lint(build_request(rows, profile), profile) == []


def piecemeal(rows, profile):
    """Build a request as it is sent while the context is read; return it, and how much was held at most."""
    builder, sent, held = RequestBuilder(profile), [], 0
    for row in rows:
        builder.add(row)
        sent += builder.ready()
        held = max(held, len(builder._pairing.turns) + len(builder._fragments))
    return [*sent, *builder.finish()], held


@settings(max_examples=150, deadline=None)
@given(histories(), st.sampled_from([Profile(), *PROFILES.values()]))
def test_any_history_that_is_sent_while_it_is_read_makes_such_a_request_too(rows, profile):
    """But for a system prompt in its midst, which stays there: what was before it has been sent."""
    rows = [replace(row, role="user") if row.role == "system" else row for row in rows]
    assert lint(piecemeal(rows, profile)[0], profile) == []


@st.composite
def conversations(draw):
    """Histories as runs write them: a result comes before what is said next."""
    rows = [Message.system("Be brief.")]
    for _ in range(draw(st.integers(0, 5))):
        rows.append(Message.user(draw(st.sampled_from(["Hi", "And?", " "]))))
        for attempt in range(draw(st.integers(1, 3))):
            spoken = draw(st.lists(st.sampled_from(["text", "reasoning", "tool_call"]), max_size=4))
            made = [said_as(kind, number) for number, kind in enumerate(spoken)]
            rows += [part for row in made for part in (split(row, 2) if len(row.content) > 2 else [row])]
            rows.append(Message.stop(draw(st.sampled_from(["stop", "tool_calls", "error"])), model="deepseek/chat"))
            calls = [row for row in made if row.type == "tool_call"]
            rows += [result(row, f"{attempt}") for row in calls[: draw(st.integers(0, len(calls)))]]
    return rows


def said_as(kind, number):
    query = {"tool": "t", "id": f"c{number}", "args": {}} if kind == "tool_call" else {"provider": {"x": [1]}}
    return Message(type=kind, content="{}" if kind == "tool_call" else "Some text", query=query)


@settings(max_examples=150, deadline=None)
@given(conversations(), st.sampled_from([Profile(), *PROFILES.values()]))
def test_a_conversation_that_is_sent_while_it_is_read_is_the_same_request(rows, profile):
    assert piecemeal(rows, profile)[0] == build_request(rows, profile)


@pytest.mark.parametrize("profile", [Profile(), profile_for("deepseek/chat"), profile_for("mistral/large")])
def test_of_a_long_conversation_little_is_held(profile):
    rows = []
    for number in range(300):
        asked = call(f"c{number}")
        rows += [user(), said("Look."), asked, stop("tool_calls"), result(asked), said("There."), stop()]
    sent, held = piecemeal(rows, profile)
    assert sent == build_request(rows, profile)
    assert held < 10


def test_a_pause_does_not_hide_whose_data_it_is():
    """Behind the answer's own stop comes that of the loop, which names no model."""
    history = [
        Message(type="reasoning", content="hm", query={"provider": {"thinking_blocks": ["of another"]}}),
        Message(type="tool_call", content="{}", query={"tool": "t", "id": "c1", "args": {}}),
        Message.stop("tool_calls", model="deepseek/chat"),
        Message.stop("paused"),
    ]
    request = build_request([Message.user("Go."), *history], profile_for("anthropic/claude"))
    assert not any("thinking_blocks" in entry for entry in request)


@pytest.mark.parametrize("more", [False, True])
def test_a_streamed_result_is_sent_with_its_head_and_tail_and_not_held(more):
    builder = RequestBuilder()
    builder.add(Message.user("Go."))
    call = Message(type="tool_call", content="{}", query={"tool": "t", "id": "c1", "args": {}})
    builder.add(call)
    query = {"tool": "t", "id": "c1", "call": call.id, "streamed": True}
    piece = Message(role="tool", type="tool_result", query=query, more=True)
    for number in range(200):
        builder.add(replace(piece, content=f"{number:04}" + "x" * 996))
    builder.add(replace(piece, content="the end", more=more))
    assert sum(len(held.content) for held in builder._fragments) < 1000
    [sent] = [entry["content"] for entry in builder.finish() if entry["role"] == "tool"]
    assert sent.startswith("0000xx")
    assert "the output has 200007 bytes" in sent
    assert sent.removesuffix("\n[interrupted here]").endswith("the end")
    assert len(sent) < 60_000
