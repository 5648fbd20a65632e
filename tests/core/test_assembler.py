"""The assembler, case by case: as it comes, re-chunked at every place, broken off after every chunk."""

import copy

import pytest

from streamagent.errors import ModelError
from streamagent.message import fold
from tests.quirks import assembler, body, cases, check, check_stream, outcome, play

CASES = cases()
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@each_case
def test_case(case):
    """Every case of the collection has its outcome."""
    check(case, play(case))


@each_case
def test_case_over_sse(case):
    """The same outcome comes of the bytes, read one by one."""
    data = body(case)
    check(case, play(case, pieces=[data[i : i + 1] for i in range(len(data))]))


@each_case
def test_case_cut_in_two(case):
    """Wherever one network read ends and the next begins, the outcome is the same."""
    data = body(case)
    whole = fingerprint(play(case, pieces=[data]))
    for cut in range(1, len(data)):
        assert fingerprint(play(case, pieces=[data[:cut], data[cut:]])) == whole, cut


@pytest.mark.parametrize("case", [case for case in CASES.values() if "chunks" in case], ids=lambda case: case["id"])
def test_case_split(case):
    """However the provider splits content, reasoning and arguments, the outcome is the same."""
    for chunks in splits(case["chunks"]):
        if case["id"] != "11-whole-call-sent-twice":  # there the border is the signal
            check(case, play(case, chunks=chunks))


@each_case
def test_case_broken_off(case):
    """After any chunk the transport may break: what was shown stays, is closed, and nothing runs."""
    chunks = case.get("chunks", [])
    for count in range(len(chunks) + 1):
        subject = assembler(case)
        shown = [message for chunk in chunks[:count] for message in subject.feed(chunk)]
        error = ModelError("reset", kind="connection", retryable=True)
        messages = shown + subject.fail(error)
        check_stream(messages)
        assert outcome(messages)["error"] == "connection"
        assert case["expect"]["text"].startswith(outcome(messages)["text"])
        assert all(call["invalid"] == "truncated" for call in outcome(messages)["tool_calls"])
        assert subject.yielded == bool(
            outcome(messages)["reasoning"] or outcome(messages)["text"] or calls_in(messages)
        )


@each_case
def test_text_is_never_taken_back(case):
    """At every moment the text so far is the beginning of the text."""
    text = ""
    for message in play(case):
        text += message.content if message.type == "text" else ""
        assert case["expect"]["text"].startswith(text)


def fingerprint(messages):
    return [(m.type, m.content, m.query if m.query and "id" not in m.query else None) for m in fold(messages)]


def calls_in(messages):
    return [message for message in fold(messages) if message.type == "tool_call"]


def splits(chunks):
    """Yield the chunks with one string of one delta split at one place."""
    for number, chunk in enumerate(chunks):
        for path in paths(chunk):
            text = follow(chunk, path)
            for cut in range(1, len(text)):
                first, second = with_text(chunk, path, text[:cut]), with_text(chunk, path, text[cut:])
                first["choices"][0]["finish_reason"] = None
                if path[0] != "content":
                    second["choices"][0]["delta"].pop("content", None)
                else:
                    second["choices"][0]["delta"].pop("reasoning_content", None)
                    second["choices"][0]["delta"].pop("tool_calls", None)
                if path[0] == "reasoning_content":
                    first["choices"][0]["delta"].pop("content", None)
                    second["choices"][0]["delta"] |= {
                        k: v for k, v in chunk["choices"][0]["delta"].items() if k == "content"
                    }
                    second["choices"][0]["delta"].pop("thinking_blocks", None)
                yield [*chunks[:number], first, second, *chunks[number + 1 :]]


def paths(chunk):
    delta = (chunk.get("choices") or [{}])[0].get("delta") or {}
    yield from ((key,) for key in ("content", "reasoning_content") if isinstance(delta.get(key), str))
    for position, call in enumerate(delta.get("tool_calls") or ()):
        if isinstance(call["function"].get("arguments"), str) and len(delta["tool_calls"]) == 1:
            yield ("tool_calls", position, "function", "arguments")


def follow(chunk, path):
    value = chunk["choices"][0]["delta"]
    for key in path:
        value = value[key]
    return value


def with_text(chunk, path, text):
    changed = copy.deepcopy(chunk)
    follow(changed, path[:-1])[path[-1]] = text
    return changed
