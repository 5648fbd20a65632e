"""Streams of providers and their right outcome: `cases()` loads them, `check()` holds messages against one.

A case has `chunks`, `raw_sse` or `raw_sse_b64`; `expect` is the outcome, `also_ok` lists outcomes that differ
in the named fields and are right too. `messages` are what a model's stream yielded, fragments and all.
"""

import base64
import json
from functools import cache
from pathlib import Path

from streamagent._core.assembler import Assembler
from streamagent._core.sse import DONE, SSEDecoder, parse_event
from streamagent.message import fold

TAGS = ("<think", "</think")


@cache
def cases():
    """Return all cases, by id."""
    files = sorted(Path(__file__).parent.glob("*.json"))
    return {case["id"]: case for case in map(json.loads, (file.read_text("utf-8") for file in files))}


def reads(case):
    """Return a case's network reads; `None` when it has chunks."""
    if "raw_sse_b64" in case:
        return [base64.b64decode(data) for data in case["raw_sse_b64"]]
    return [text.encode() for text in case["raw_sse"]] if "raw_sse" in case else None


def body(case):
    """Return the bytes that a provider would send for a case."""
    raw = reads(case)
    if raw is not None:
        return b"".join(raw)
    return b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in case["chunks"]) + b"data: [DONE]\n\n"


def assembler(case):
    """Make the assembler that a case asks for."""
    return Assembler(tools=case["tools"], **case["options"])


def play(case, chunks=None, pieces=None):
    """Run a case through the assembler and return the messages.

    Args:
        case: The case.
        chunks: Other chunks than its own.
        pieces: Other network reads than its own.
    """
    subject = assembler(case)
    pieces = reads(case) if pieces is None and chunks is None else pieces
    if pieces is None:
        messages = [message for chunk in chunks or case["chunks"] for message in subject.feed(chunk)]
        return messages + subject.end(done=True)
    return play_sse(subject, pieces)


def play_sse(subject, pieces):
    """Feed network reads to an assembler until their end, as a model on HTTP does."""
    decoder, messages, done = SSEDecoder(), [], False

    def take(events):
        nonlocal done
        for event in events:
            done = done or event == DONE
            if event != DONE and (chunk := parse_event(event)) is not None:
                messages.extend(subject.feed(chunk))

    for piece in pieces:
        take(decoder.feed(piece))
    take(decoder.end())
    return messages + subject.end(done=done)


def outcome(messages):
    """Return what `expect` describes, of messages."""
    *_, stop = messages
    whole = fold(messages)
    query = stop.query
    error = query.get("error")
    return {
        "text": "".join(message.content for message in whole if message.type == "text"),
        "reasoning": "".join(message.content for message in whole if message.type == "reasoning") or None,
        "tool_calls": [call_outcome(message) for message in whole if message.type == "tool_call"],
        "finish_reason": query["reason"],
        "usage": query.get("usage"),
        "error": error and error["kind"],
        "retry_transparently": bool(error and error["retryable"] and not shown(messages)),
        "replay": replay(whole),
    }


def call_outcome(message):
    query = message.query
    call = {"id": query["id"], "name": query["tool"], "arguments": query["args"], "arguments_raw": message.content}
    return call | {"invalid": query.get("invalid")}


def shown(messages):
    """Whether anything was visible."""
    return any(m.type == "tool_call" or (m.content and m.type in ("text", "reasoning")) for m in messages)


def replay(whole):
    data = {}
    for message in whole:
        for key, value in ((message.query or {}).get("provider") or {}).items():
            data[key] = [*data.get(key, []), *value] if isinstance(value, list) else value
    return data


def fits(expect, found):
    """Whether an outcome is the expected one, in every field that is named."""
    named = {key: value for key, value in expect.items() if key != "tool_calls"}
    calls = expect["tool_calls"]
    if any(found[key] != value for key, value in named.items()) or len(calls) != len(found["tool_calls"]):
        return False
    return all(call_fits(*pair) for pair in zip(calls, found["tool_calls"], strict=True))


def call_fits(expect, found):
    wanted = {"invalid": None, **expect}
    if wanted["id"] == "*":
        wanted["id"] = found["id"] or "*"
    return all(found[key] == value for key, value in wanted.items())


def check(case, messages):
    """Hold what was yielded for a case against its outcome, and against what holds of every stream."""
    check_stream(messages)
    found = outcome(messages)
    accepted = [case["expect"], *({**case["expect"], **other} for other in case.get("also_ok", ()))]
    assert any(fits(expect, found) for expect in accepted), f"{case['id']}: {found}"
    if case["expect"]["text"].find("<think") < 0:
        assert not any(tag in message.content for message in messages for tag in TAGS)
    ids = [call["id"] for call in found["tool_calls"]]
    assert all(ids)
    assert len(set(ids)) == len(ids)


def check_stream(messages):
    """Assert what every answer is: whole messages, no empty text, storable characters, one `stop` at the end."""
    assert [message.type for message in messages].count("stop") == 1
    assert messages[-1].type == "stop"
    for message in fold(messages):
        assert not message.more
        assert message.role == "assistant"
        assert message.content or message.type != "text"
        assert message.content or message.type != "reasoning" or message.query["provider"]
    for message in messages:
        message.content.encode()  # raises for half a surrogate pair
        assert "\0" not in message.content
