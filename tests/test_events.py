"""Lifecycle events: pi's order in the eleven scenarios, pi's fields, and streams that are odd."""

import json
from contextlib import aclosing

import pytest

from streamagent.errors import MessageError
from streamagent.events import EventEncoder, events
from streamagent.message import Message, split
from streamagent.testing.stages import ENDINGS, check_stage
from tests.lifecycle import AT_MS, call, check_order, encode, of, progress, result, short, shorts, stop, text, user

A, B = call("a"), call("b")
ASKED = [user("Hi"), A, B, stop("tool_calls")]
ANSWER = [*text("15"), stop()]

START = ["agent_start", "turn_start", "message_start user Hi", "message_end user Hi"]
CALLS = ["message_start assistant", "message_end assistant a() b() (toolUse)"]
ONE_CALL = ["message_start assistant", "message_end assistant a() (toolUse)"]
FINAL = ["turn_start", "message_start assistant", "message_end assistant 15 (stop)", "turn_end"]


def shown(content):
    return [f"message_start toolResult {content}", f"message_end toolResult {content}"]


def failing(tool_text, **query):
    """One call that is not executed, and what the model says of it."""
    asked = call("a", **query)
    return [
        user("Hi"),
        asked,
        stop("tool_calls"),
        progress("start", asked, args=asked.query["args"]),
        progress("end", asked, tool_text, is_error=True),
        result(asked, tool_text, is_error=True),
        *ANSWER,
    ]


def failed(tool_text):
    return [
        *START,
        *ONE_CALL,
        "tool_execution_start a",
        f"tool_execution_end a {tool_text} (error)",
        *shown(tool_text),
        "turn_end a",
        *FINAL,
        "agent_end 4",
    ]


SCENARIOS = {
    "two parallel calls, the second ends first": (
        [
            *ASKED,
            progress("start", A),
            progress("start", B),
            progress("end", B, "2"),
            progress("end", A, "1"),
            result(A, "1"),
            result(B, "2"),
            *ANSWER,
        ],
        [
            *START,
            *CALLS,
            "tool_execution_start a",
            "tool_execution_start b",
            "tool_execution_end b 2",
            "tool_execution_end a 1",
            *shown("1"),
            *shown("2"),
            "turn_end a b",
            *FINAL,
            "agent_end 5",
        ],
    ),
    "a mixed batch: one asks to terminate, one does not, and the run goes on": (
        [
            *ASKED,
            progress("start", A),
            progress("end", A, "done", terminate=True),
            progress("start", B),
            progress("end", B, "2"),
            result(A, "done"),
            result(B, "2"),
            *ANSWER,
        ],
        [
            *START,
            *CALLS,
            "tool_execution_start a",
            "tool_execution_end a done",
            "tool_execution_start b",
            "tool_execution_end b 2",
            *shown("done"),
            *shown("2"),
            "turn_end a b",
            *FINAL,
            "agent_end 5",
        ],
    ),
    "blocked": (failing("Tool execution was blocked"), failed("Tool execution was blocked")),
    "invalid": (failing("of: 'x' is not an integer", args={"of": "x"}), failed("of: 'x' is not an integer")),
    "unknown": (failing("Tool stok not found", tool="stok", invalid="unknown_tool"), failed("Tool stok not found")),
    "terminate: all": (
        [
            *ASKED,
            progress("start", A),
            progress("start", B),
            progress("end", A, "done"),
            progress("end", B, "done"),
            result(A, "done"),
            result(B, "done"),
            stop("terminate"),
        ],
        [
            *START,
            *CALLS,
            "tool_execution_start a",
            "tool_execution_start b",
            "tool_execution_end a done",
            "tool_execution_end b done",
            *shown("done"),
            *shown("done"),
            "turn_end a b",
            "agent_end 4 terminate",
        ],
    ),
    "steer before the first call": (
        [user("Hi"), user("In German."), *ANSWER],
        [
            *START,
            "message_start user In German.",
            "message_end user In German.",
            *FINAL[1:],
            "agent_end 3",
        ],
    ),
    "two follow-ups": (
        [user("Hi"), *ANSWER, user("And 2?"), *ANSWER, user("And 3?"), *ANSWER],
        [
            *START,
            *FINAL[1:],
            "turn_start",
            "message_start user And 2?",
            "message_end user And 2?",
            *FINAL[1:],
            "turn_start",
            "message_start user And 3?",
            "message_end user And 3?",
            *FINAL[1:],
            "agent_end 6",
        ],
    ),
    "error stop": (
        [user("Hi"), stop("error", error={"kind": "overloaded", "message": "busy", "retryable": True})],
        [*START, "message_start assistant", "message_end assistant (error)", "turn_end", "agent_end 2"],
    ),
    "abort in text": (
        [user("Hi"), *text("Fif", ""), stop("aborted")],
        [*START, "message_start assistant", "message_end assistant Fif (aborted)", "turn_end", "agent_end 2"],
    ),
    "abort in a tool: what did not run has a result, and no empty answer follows": (
        [
            *ASKED,
            progress("start", A),
            result(A, "Cancelled", is_error=True),
            result(B, "Operation aborted", is_error=True),
            stop("aborted"),
        ],
        [
            *START,
            *CALLS,
            "tool_execution_start a",
            "tool_execution_end a Cancelled (error)",
            "tool_execution_start b",
            "tool_execution_end b Operation aborted (error)",
            *shown("Cancelled"),
            *shown("Operation aborted"),
            "turn_end a b",
            "agent_end 4 aborted",
        ],
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_gives_the_events_that_pi_gives(name):
    messages, golden = SCENARIOS[name]
    assert shorts(messages) == golden
    check_order(encode(messages))


USAGE = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0}
COST = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}


def assistant(*content, reason="stop", model="", provider="", **usage):
    return {
        "role": "assistant",
        "content": list(content),
        "api": "streamagent",
        "provider": provider,
        "model": model,
        "usage": {**USAGE, **usage, "cost": COST},
        "stopReason": reason,
        "timestamp": AT_MS,
    }


def update(message, **said):
    return {"type": "message_update", "message": message, "assistantMessageEvent": {**said, "partial": message}}


def whole(message):
    return [{"type": "message_start", "message": message}, {"type": "message_end", "message": message}]


def test_every_field_has_the_name_and_the_value_that_pi_gives_it():
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    messages = [
        user("Hi"),
        *text("Lo", "ok."),
        A,
        stop("tool_calls", usage=usage, model="openai/gpt-5"),
        progress("start", A, args={"of": "a"}),
        progress("update", A, "half"),
        progress("end", A, "15"),
        result(A, "15", details={"unit": "mug"}),
        stop("turn_limit", limit={"turns": 1}),
    ]
    call_block = {"type": "toolCall", "id": "a", "name": "stock", "arguments": {"of": "a"}}
    open_call = {**call_block, "arguments": {}}
    said = [{"type": "text", "text": "Look."}]
    full = assistant(
        *said, call_block, reason="toolUse", provider="openai", model="gpt-5", input=10, output=2, totalTokens=12
    )
    prompt = {"role": "user", "content": "Hi", "timestamp": AT_MS}
    tool = {"toolCallId": "a", "toolName": "stock"}
    content = [{"type": "text", "text": "15"}]
    made = {"role": "toolResult", **tool, "content": content, "details": {"unit": "mug"}, "isError": False}
    made["timestamp"] = AT_MS
    assert [event.to_dict() for event in encode(messages)] == [
        {"type": "agent_start"},
        {"type": "turn_start"},
        *whole(prompt),
        {"type": "message_start", "message": assistant()},
        update(assistant({"type": "text", "text": ""}), type="text_start", contentIndex=0),
        update(assistant({"type": "text", "text": "Lo"}), type="text_delta", contentIndex=0, delta="Lo"),
        update(assistant(*said), type="text_delta", contentIndex=0, delta="ok."),
        update(assistant(*said), type="text_end", contentIndex=0, content="Look."),
        update(assistant(*said, open_call), type="toolcall_start", contentIndex=1),
        update(assistant(*said, open_call), type="toolcall_delta", contentIndex=1, delta='{"of":"a"}'),
        update(assistant(*said, call_block), type="toolcall_end", contentIndex=1, toolCall=call_block),
        {"type": "message_end", "message": full},
        {"type": "tool_execution_start", **tool, "args": {"of": "a"}},
        {
            "type": "tool_execution_update",
            **tool,
            "args": {"of": "a"},
            "partialResult": {"content": [{"type": "text", "text": "half"}]},
        },
        {"type": "tool_execution_end", **tool, "result": {"content": content}, "isError": False},
        *whole(made),
        {"type": "turn_end", "message": full, "toolResults": [made]},
        {"type": "agent_end", "messages": [prompt, full, made], "reason": "turn_limit"},
    ]


def test_events_are_json():
    for event in encode(SCENARIOS["two parallel calls, the second ends first"][0]):
        assert json.loads(json.dumps(event.to_dict())) == event.to_dict()


def test_what_an_update_shows_does_not_grow_with_the_answer():
    first, *_ = [event for event in encode([user("Hi"), *text("a", "b"), stop()]) if event.type == "message_update"]
    assert first.message["content"] == [{"type": "text", "text": ""}]
    assert (len(first.message), "content" in repr(first.message)) == (len(assistant()), True)
    assert first.assistant_message_event["partial"] == first.message


# -- what an assistant's message holds


def answered(*messages):
    """The final message of an answer."""
    return next(event.message for event in reversed(encode([user("Hi"), *messages])) if event.type == "turn_end")


@pytest.mark.parametrize(
    ("blocks", "signature"),
    [
        ([], {}),
        ([{"type": "thinking", "thinking": "hm", "signature": "s"}], {"thinkingSignature": "s"}),
        ([{"type": "redacted_thinking", "data": "x"}], {"thinkingSignature": "x", "redacted": True}),
        ([{"type": "thinking", "signature": "s"}, {"type": "thinking", "signature": "t"}], {}),
    ],
)
def test_reasoning_is_thinking_with_the_signature_of_its_one_block(blocks, signature):
    thought = Message(type="reasoning", content="hm", query={"provider": {"thinking_blocks": blocks}})
    [block, _] = answered(thought, *ANSWER)["content"]
    assert block == {"type": "thinking", "thinking": "hm", **signature}


def test_thinking_streams_under_its_own_name():
    lines = [short(event) for event in encode([*text("h", "m", kind="reasoning"), stop()])]
    assert lines[3:7] == [
        "message_update thinking_start",
        "message_update thinking_delta 'h'",
        "message_update thinking_delta 'm'",
        "message_update thinking_end",
    ]


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (None, {}),
        ({"prompt_tokens": 7, "completion_tokens": 2}, {"input": 7, "output": 2, "totalTokens": 9}),
        (
            {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}, "cache_creation_input_tokens": 1},
            {"input": 3, "cacheRead": 3, "cacheWrite": 1, "totalTokens": 7},
        ),
        ({"prompt_tokens": 1, "cache_read_input_tokens": 3}, {"cacheRead": 3, "totalTokens": 1}),
    ],
)
def test_tokens_are_counted_as_pi_counts_them(usage, counted):
    assert answered(*text("15"), stop(usage=usage))["usage"] == {**USAGE, **counted, "cost": COST}


@pytest.mark.parametrize(
    ("end", "word", "error"),
    [
        (stop("length"), "length", None),
        (stop("content_filter", error={"message": "filtered"}), "error", "filtered"),
        (stop("error", error={"message": "busy"}), "error", "busy"),
        (stop("aborted"), "aborted", "Operation aborted"),
        (stop("deadline"), "aborted", "The run ended: deadline"),
        (stop("rate_limit"), "length", None),
        (Message(type="stop"), "stop", None),
    ],
)
def test_a_reason_to_stop_is_said_in_pis_words(end, word, error):
    message = answered(*text("1"), end)
    assert (message["stopReason"], message.get("errorMessage")) == (word, error)


@pytest.mark.parametrize(("model", "parts"), [("mock", ("mock", "mock")), ("a/b/c", ("a", "b/c")), (None, ("", ""))])
def test_a_model_is_named_by_its_provider_and_its_name_there(model, parts):
    message = answered(*text("1"), stop(model=model))
    assert (message["provider"], message["model"]) == parts


@pytest.mark.parametrize(
    ("prompt", "content"),
    [
        (
            Message(role="user", type="image", query={"mime": "image/png", "data": "aGk="}),
            [{"type": "image", "mimeType": "image/png", "data": "aGk="}],
        ),
        (
            Message(role="user", type="file", query={"url": "https://a.example/b", "name": "b"}),
            [{"type": "file", "mimeType": "", "url": "https://a.example/b", "name": "b"}],
        ),
    ],
)
def test_an_attachment_is_a_block_of_the_users_message(prompt, content):
    assert encode([prompt])[2].message["content"] == content


# -- tools


def parallel(*ends):
    return [*ASKED, progress("start", A), progress("start", B), *ends]


def test_without_progress_all_start_with_the_first_result_and_end_with_their_own():
    assert shorts([*ASKED, result(A, "1"), result(B, "2"), *ANSWER]) == [
        *START,
        *CALLS,
        "tool_execution_start a",
        "tool_execution_start b",
        "tool_execution_end a 1",
        "tool_execution_end b 2",
        *shown("1"),
        *shown("2"),
        "turn_end a b",
        *FINAL,
        "agent_end 5",
    ]


def test_results_are_shown_in_call_order_when_the_last_call_has_ended():
    lines = shorts(parallel(progress("end", A, "1"), result(B, "2"), result(A, "1")))
    assert lines[8:] == [
        "tool_execution_end a 1",
        "tool_execution_end b 2",
        *shown("2"),
        *shown("1"),
        "turn_end b a",
        "agent_end 4",
    ]


def test_in_a_sequential_batch_each_result_follows_its_call():
    def each(asked, content):
        return [progress("start", asked, sequential=True), progress("end", asked, content), result(asked, content)]

    assert shorts([*ASKED, *each(A, "1"), *each(B, "2")])[6:] == [
        "tool_execution_start a",
        "tool_execution_end a 1",
        *shown("1"),
        "tool_execution_start b",
        "tool_execution_end b 2",
        *shown("2"),
        "turn_end a b",
        "agent_end 4",
    ]


def test_what_comes_after_the_end_of_a_call_is_dropped():
    late = [progress("update", A, "late"), progress("end", A, "late"), progress("start", A)]
    lines = shorts(parallel(progress("end", A, "1"), *late, result(A, "1"), result(B, "2"), *late[:2]))
    assert [line for line in lines if line.endswith(" late")] == []
    assert lines.count("tool_execution_start a") == 1


def test_a_result_in_pieces_is_shown_as_it_grows():
    pieces = [*split(result(A, "abcdef"), 2)]
    opened = Message(**{**fields_of(pieces[0]), "query": of(A, is_error=False)})
    lines = shorts([user("Hi"), A, stop("tool_calls"), progress("start", A), opened, *pieces[1:]])
    assert lines[6:] == [
        "tool_execution_start a",
        "tool_execution_update a ab",
        "tool_execution_update a abcd",
        "tool_execution_end a abcdef",
        *shown("abcdef"),
        "turn_end a",
        "agent_end 3",
    ]


def fields_of(message):
    return {name: getattr(message, name) for name in Message.__dataclass_fields__}


def test_the_end_of_a_streamed_result_has_all_that_was_streamed():
    first, last = split(result(A, "abcd"), 2)
    opened = Message(**{**fields_of(first), "query": of(A)})
    lines = shorts([user("Hi"), A, stop("tool_calls"), progress("start", A), opened, progress("end", A, "cd"), last])
    assert lines[8:11] == ["tool_execution_end a abcd", *shown("abcd")]


def test_pieces_that_do_not_say_whose_they_are_wait_for_the_one_that_does():
    lines = shorts([user("Hi"), A, stop("tool_calls"), *split(result(A, "abcdef"), 2)])
    assert lines[6:8] == ["tool_execution_start a", "tool_execution_end a abcdef"]


@pytest.mark.parametrize(("beyond", "cut"), [(0, False), (1, True)])
def test_a_huge_result_is_cut_beyond_256_kib(beyond, cut):
    size = 256 * 1024 + beyond
    message = encode([A, stop("tool_calls"), result(A, "x" * size)])[-3].message
    assert ("the middle is left out" in message["content"][0]["text"]) is cut
    assert len(message["content"][0]["text"]) <= size + 100


def test_a_result_of_old_rows_is_paired_by_the_providers_id():
    old = [Message(role="tool", type="tool_result", content=id_, query={"tool": "stock", "id": id_}) for id_ in "ab"]
    lines = shorts([*ASKED, *old])
    assert lines[-1] == "agent_end 4"
    assert "turn_end a b" in lines


# -- answers that a limit or a failure ends


def test_no_call_of_an_answer_that_was_cut_at_its_length_runs_and_each_says_so():
    refused = call("a", args=None, invalid="truncated")
    lines = shorts([user("Hi"), refused, result(refused, "cut off", is_error=True), stop("length"), *ANSWER])
    assert lines[4:] == [
        "message_start assistant",
        "message_end assistant a() (length)",
        "tool_execution_start a",
        "tool_execution_end a cut off (error)",
        *shown("cut off"),
        "turn_end a",
        *FINAL,
        "agent_end 4",
    ]


@pytest.mark.parametrize("reason", ["error", "aborted", "content_filter"])
@pytest.mark.parametrize("after", [False, True])
def test_calls_of_an_answer_that_failed_are_not_begun(reason, after):
    refused = call("a", args=None, invalid="truncated")
    ends = [result(refused, "cut off", is_error=True), stop(reason)]
    lines = shorts([user("Hi"), refused, *(reversed(ends) if after else ends)])
    assert [line.split()[0] for line in lines[5:]] == ["message_end", "turn_end", "agent_end"]


def test_a_call_that_ran_before_the_answer_broke_off_is_shown():
    cut = call("b", args=None, invalid="truncated")
    ends = [progress("end", A, "1"), result(A, "1"), result(cut, "cut off", is_error=True)]
    lines = shorts([user("Hi"), A, progress("start", A), cut, *ends, stop("aborted")])
    assert lines[5:] == [
        "message_end assistant a() b() (aborted)",
        "tool_execution_start a",
        "tool_execution_end a 1",
        *shown("1"),
        "turn_end a",
        "agent_end 3",
    ]


def test_calls_that_a_limit_let_through_are_shown_before_its_stop_comes():
    encoder = EventEncoder()
    messages = [user("Hi"), A, progress("start", A), progress("update", A, "1"), progress("update", A, "2")]
    assert (
        short([event for message in messages for event in encoder.feed(message)][-1]) == "message_update toolcall_end"
    )
    assert [short(event) for event in encoder.feed(result(A, "15"))] == [
        "message_end assistant a() (toolUse)",
        "tool_execution_start a",
        "tool_execution_update a 2",
        "tool_execution_end a 15",
        *shown("15"),
        "turn_end a",
    ]
    assert encoder.feed(stop("rate_limit")) == []
    assert short(encoder.end()[0]) == "agent_end 3 rate_limit"


def test_a_limit_that_closes_an_answer_with_calls_leaves_them_to_run():
    lines = shorts([user("Hi"), A, stop("budget"), result(A, "15")])
    assert lines[5:7] == ["message_end assistant a() (toolUse)", "tool_execution_start a"]
    assert lines[-1] == "agent_end 3 budget"


def test_an_attempt_that_supersedes_is_a_turn_of_its_own_and_the_first_one_failed():
    lost, better = text("Fif", ""), [Message(content="15", attempt=2), stop()]
    lines = shorts([user("Hi"), *lost, *better])
    assert lines[4:] == [
        "message_start assistant",
        "message_end assistant Fif (error)",
        "turn_end",
        *FINAL,
        "agent_end 3",
    ]


def test_calls_of_an_attempt_that_is_superseded_are_given_up():
    lines = shorts([user("Hi"), A, Message(content="15", attempt=2), stop()])
    assert lines[4:7] == ["message_start assistant", "message_end assistant a() (error)", "turn_end"]


# -- turns


def test_what_the_user_says_between_the_results_belongs_to_the_next_turn():
    lines = shorts([*ASKED, result(A, "1"), user("Faster!"), result(B, "2"), *ANSWER])
    after = lines.index("turn_end a b")
    assert lines[after + 1 : after + 4] == ["turn_start", "message_start user Faster!", "message_end user Faster!"]


def test_a_prompt_after_the_last_word_begins_a_turn_though_a_call_waits():
    lines = shorts([user("Hi"), A, stop("paused"), user("And?")])
    assert lines[5:] == [
        "message_end assistant a() (toolUse)",
        "turn_end",
        "turn_start",
        "message_start user And?",
        "message_end user And?",
        "turn_end",
        "agent_end 3 paused",
    ]


def test_a_call_that_waits_for_an_approval_is_not_begun():
    asks = Message(role="tool", type="approval", query={"call": B.id})
    lines = shorts([*ASKED[:-1], asks, ASKED[-1], result(A, "1"), stop("paused")])
    assert lines[6:] == [
        "tool_execution_start a",
        "tool_execution_end a 1",
        *shown("1"),
        "turn_end a",
        "agent_end 3 paused",
    ]


def test_a_run_that_finishes_calls_of_an_earlier_one_is_a_turn_without_an_answer():
    decided = Message(role="user", type="approval", query={"call": A.id, "decision": "approve"})
    run = [decided, progress("start", A, args=A.query["args"]), progress("end", A, "15"), result(A, "15"), *ANSWER]
    ran = ["agent_start", "turn_start", "tool_execution_start a", "tool_execution_end a 15", *shown("15"), "turn_end a"]
    assert shorts(run) == [*ran, *FINAL, "agent_end 2"]
    assert encode(run)[2].args == {"of": "a"}
    assert shorts([*run[:4], user("And?")])[7:10] == ["turn_start", "message_start user And?", "message_end user And?"]
    assert shorts([*run[:4], stop("aborted")])[6:] == ["turn_end a", "agent_end 1 aborted"]


def test_results_that_never_came_end_with_the_turn():
    lines = shorts([*ASKED, progress("start", A), *ANSWER])
    assert lines[6:9] == ["tool_execution_start a", "tool_execution_end a Operation aborted (error)", "turn_end"]


def test_a_stream_that_breaks_off_is_closed():
    assert shorts([user("Hi"), *text("Fif", "")])[-3:] == [
        "message_end assistant Fif (aborted)",
        "turn_end",
        "agent_end 2",
    ]
    assert shorts([user("Hi")])[-2:] == ["turn_end", "agent_end 1"]
    assert shorts([*ASKED[:2], result(A), user("And?")])[-3:] == ["message_end user And?", "turn_end", "agent_end 4"]


def test_a_stop_alone_is_an_answer_that_failed():
    assert shorts([stop("error")])[2:4] == ["message_start assistant", "message_end assistant (error)"]


def test_an_empty_stream_gives_nothing():
    assert encode([]) == []


def test_what_pi_does_not_know_gives_nothing():
    others = [Message.system("Be brief."), Message(type="of the future"), Message(role="user", type="cancel")]
    assert encode([*others, progress("update", A), progress("odd", A)]) == []


def test_progress_in_a_state_that_is_none_neither_starts_nor_ends_a_call():
    assert shorts(parallel(progress("odd", A)))[6:8] == ["tool_execution_start a", "tool_execution_start b"]
    assert shorts([*ASKED, progress("odd", A), result(A, "1"), result(B, "2")]) == shorts(
        [*ASKED, result(A, "1"), result(B, "2")]
    )


def test_results_held_twice_do_not_join_a_later_answer():
    refused = call("c", args=None, invalid="truncated")
    better = [Message(content="15", attempt=2), stop()]
    check_order(encode([A, refused, result(A), result(A), *better]))


def test_a_prompt_in_pieces_is_one_message():
    lines = shorts([*split(user("How many?"), 4), stop()])
    assert lines[2:4] == ["message_start user How many?", "message_end user How many?"]


def test_an_encoder_begins_anew_after_the_end():
    encoder = EventEncoder()
    runs = [[*encoder.feed(user("Hi")), *encoder.end()] for _ in range(2)]
    assert [[short(event) for event in run] for run in runs] == [[*START, "turn_end", "agent_end 1"]] * 2


def test_a_fragment_after_the_last_one_is_refused_and_changes_nothing():
    encoder = EventEncoder()
    [fragment] = text("15")
    for message in (user("Hi"), fragment):
        encoder.feed(message)
    with pytest.raises(MessageError, match="closed already"):
        encoder.feed(fragment)
    assert short(encoder.feed(stop())[0]) == "message_end assistant 15 (stop)"


# -- the generator


async def _as_stage(stream):
    async with aclosing(events(stream)) as lifecycle:
        async for event in lifecycle:
            yield Message(type="data", content=event.type)


@pytest.mark.anyio
@pytest.mark.parametrize("ending", ENDINGS)
async def test_the_generator_may_be_left_after_every_event(ending):
    messages = SCENARIOS["two parallel calls, the second ends first"][0]
    for at in range(1, len(messages) + 1):
        await check_stage(_as_stage, messages, ending, at=at)


@pytest.mark.anyio
async def test_the_generator_gives_what_the_encoder_gives():
    messages = SCENARIOS["two parallel calls, the second ends first"][0]

    async def stream():
        for message in messages:
            yield message

    assert [event async for event in events(stream())] == encode(messages)
