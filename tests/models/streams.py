"""Streams of providers, drawn by hypothesis, and what the assembler alone makes of their bytes."""

import gzip
import json
from dataclasses import dataclass

from hypothesis import strategies as st

from streamagent._core.assembler import Assembler
from streamagent._core.sse import DONE, SSEDecoder, parse_event
from streamagent.errors import ModelError
from streamagent.message import fold
from streamagent.testing.provider import call, delta, finish, text, usage

from .raw import Play, cut, framed, head

TOOLS = ("stock", "ship")
EVENTS = {"content_type": "text/event-stream"}
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")

places = st.lists(st.integers(1, 2000), max_size=6, unique=True)
framings = st.sampled_from(["chunked", "chunked", "length", "close"])
words = st.text(st.sampled_from('ab <>ßé京🌍"\\\n'), min_size=1, max_size=12)
arguments = st.dictionaries(st.sampled_from(["a", "京", "x y"]), st.integers() | words | st.none(), max_size=3)


@st.composite
def call_chunks(draw):
    """Draw some calls whose pieces come in any order in which a provider may send them."""
    streams = []
    for index, given in enumerate(draw(st.lists(arguments, max_size=3))):
        written = json.dumps(given, ensure_ascii=draw(st.booleans()))
        ends = sorted(draw(st.lists(st.integers(0, len(written)), max_size=4)))
        pieces = [written[start:end] for start, end in zip([0, *ends], [*ends, len(written)], strict=True)]
        opener = call("", index=index, id=f"c{index}", name=TOOLS[index % 2])
        streams.append([opener, *(call(piece, index=index) for piece in pieces if piece)])
    order = draw(st.permutations([index for index, stream in enumerate(streams) for _ in stream]))
    sources = [iter(stream) for stream in streams]
    return [next(sources[index]) for index in order]


@st.composite
def answers(draw):
    """Draw the chunks of an answer as a provider without quirks sends them."""
    chunks = [delta(reasoning_content=word) for word in draw(st.lists(words, max_size=3))]
    chunks += [text(word) for word in draw(st.lists(words, min_size=1, max_size=6))]
    calls = draw(call_chunks())
    chunks += [*calls, finish("tool_calls" if calls else draw(st.sampled_from(["stop", "length"])))]
    return [*chunks, usage(draw(st.integers(1, 99)), 7)]


@st.composite
def odd_answers(draw):
    """Draw the chunks of an answer with quirks: mixed, counted anywhere, finished more than once, or never."""
    one = st.one_of(
        words.map(text),
        words.map(lambda word: delta(reasoning_content=word)),
        st.sampled_from(["stop", "tool_calls", "length", "content_filter", "error", "STOP"]).map(finish),
        st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda counts: usage(*counts)),
        st.tuples(words, st.integers(0, 9)).map(lambda pair: {**text(pair[0]), "usage": {"prompt_tokens": pair[1]}}),
        words.map(lambda word: delta(content=[{"type": "text", "text": word}])),
        st.sampled_from(
            [text(""), delta(), {"choices": None}, {"choices": []}, delta(tool_calls=None), delta(role="x")]
        ),
        st.integers(20, 60).map(lambda count: text("long " * 1000 * count)),
        st.just({"error": {"message": "Overloaded", "type": "overloaded_error"}}),
    )
    mixed = draw(st.lists(one, max_size=8))
    for place, chunk in enumerate(draw(call_chunks())):
        mixed.insert(min(len(mixed), place * 2), chunk)
    return mixed


@st.composite
def bodies(draw, chunks, *, noisy=True):
    """Draw how chunks are written as events."""
    ascii_only, space = draw(st.booleans()), draw(st.sampled_from(["data: ", "data:"]))
    line = draw(st.sampled_from(["\n", "\r\n", "\r"] if noisy else ["\n", "\r\n"]))
    between = st.sampled_from(["", "", ": ping" + line * 2, "event: message" + line, "id: 7" + line] if noisy else [""])
    written = "\ufeff" if noisy and draw(st.booleans()) else ""
    for chunk in draw(chunks):
        data = json.dumps(chunk, ensure_ascii=ascii_only)
        written += f"{draw(between)}{space}{data}{line * 2}"
    if not noisy or draw(st.booleans()):
        written += f"{space}[DONE]{line * 2}"
    return written.encode()


@dataclass(frozen=True)
class Sent:
    """A response: what its body says, and how its bytes come."""

    body: bytes
    play: Play


@st.composite
def whole(draw, body, **fields):
    """Draw a response that comes whole, cut anywhere."""
    body, framing = draw(body), draw(framings)
    more, data = framed(body, framing, draw(places))
    response = head(**{**EVENTS, **fields, **more}) + data
    return Sent(body, Play(tuple(cut(response, draw(places))), "eof" if framing == "close" else "keep"))


@st.composite
def broken(draw, body):
    """Draw a response whose connection is lost or silent behind any byte of its body."""
    body, framing = draw(body), draw(framings)
    more, data = framed(body, framing, draw(places))
    start = head(**EVENTS, **more)
    end = draw(st.integers(0, len(data)))
    pieces = [start, *cut(data[:end], draw(places))] if end else [start]
    endings = ["eof", "eof", "reset"] if end == len(data) else ["eof", "reset", "hang"]  # else nothing is missing
    return Sent(body, Play(tuple(pieces), draw(st.sampled_from(endings))))


def assembled(body, *, name, tools=TOOLS):
    """Return what the assembler makes of the bytes of a whole body, one chunk at a time."""
    subject, messages, done, some = Assembler(tools=tools, model=name), [], False, False
    decoder = SSEDecoder()
    try:
        for events in (decoder.feed(body), decoder.end()):
            for event in events:
                done = done or event == DONE
                if not done and (chunk := parse_event(event)) is not None:
                    some = True
                    messages += subject.feed(chunk)
    except ModelError as error:
        return messages + subject.fail(error)
    if not some:
        return subject.fail(ModelError("nothing came", kind="truncated", retryable=True))
    return messages + subject.end(done=done)


def essence(messages):
    """Return what must be the same: all but ids and times, how a text was cut, what an error says, what was counted."""
    found = []
    for message in fold(messages):
        query = {key: value for key, value in (message.query or {}).items() if key not in ("cost", "attempts")}
        if "error" in query:
            query["error"] = {key: query["error"][key] for key in ("kind", "retryable")}
        if message.type == "tool_call" and query["id"].startswith("call_"):
            query["id"] = "made up"
        query.pop("usage", None)
        found.append((message.type, message.content, query))
    return found


def good(body):
    """Make a response that comes whole, in one piece."""
    more, data = framed(body, "length")
    return Play((head(**EVENTS, **more) + data,))


REFUSALS = [
    *(b"", b"no", b"{}", b"[]", b"null", b"5", b'"no"', b"\xff\xfe\x00", b"<html>gateway</html>", b"[" * 9000),
    *(b'{"error": %b}' % error for error in (b"null", b"5", b'"no"', b"[]", b"{}", b'{"message": 5}')),
    b'{"error": {"message": "no", "type": ["x"], "code": {"y": 1}}}',
    b'{"error": {"message": "half \\ud83c", "code": 1e999}}',
    b'{"error": {"message": "null \\u0000 \xe4\xba\xac", "code": "rate_limit_exceeded"}}',
    b'{"message": "no", "object": "error"}',
    b'[{"error": {"message": "no"}}]',
    b'{"error": {"message": "%b"}}' % (b"long " * 20_000),
]
ANSWERS = [
    b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}',
    *(b'{"choices": %b}' % one for one in (b"5", b"[5]", b"null", b"{}", b'"x"', b'[{"message": 5}]', b"[[]]")),
    *(b'{"choices": [{"message": {"content": %b}}]}' % one for one in (b'"half \\ud83c"', b"NaN", b"[5]", b"{}")),
]
TYPES = [
    *("text/event-stream", "application/json", "text/html", "", ";;", "nonsense", "text/event-stream; charset=nope"),
    *("application/json; charset=nope", "application/x-ndjson", "image/png", "multipart/mixed"),
]
WAITS = ["0", "1", "-1", "1e999", "nan", "soon", "", "9" * 400, "Mon, 01 Jan 2020 00:00:00 +" + "9" * 30, "\xb2"]
STATUSES = [200, 201, 204, 206, 304, 308, 400, 401, 402, 404, 408, 411, 413, 418, 422, 429, 500, 503, 529, 999]


@st.composite
def damaged(draw):
    """Draw the bytes of a body in which something is damaged."""
    data = bytearray(draw(bodies(answers() | odd_answers())))
    for garbage in draw(st.lists(st.sampled_from(GARBAGE) | st.binary(min_size=1, max_size=9), max_size=3)):
        place = draw(st.integers(0, len(data)))
        data[place : place + draw(st.sampled_from([0, 0, 1, 9]))] = garbage
    return bytes(data)


GARBAGE = [
    b"\n\n",
    b"\r\n\r\n",
    b"data: ",
    b"data: [DONE]\n\n",
    b"{",
    b"}",
    b'"',
    b"\x00",
    b"\xe4\xba",
    b"\xf0\x9f",
    b"[1,2]",
]
GARBAGE += [b"data: {nope\n\n", b"data: [5]\n\n", b'data: {"choices": 5}\n\n', b'data: {"choices": [{"delta": 5}]}\n\n']
GARBAGE += [b"data: " + b'{"a":' * 2000 + b"\n\n", b'data: {"choices": []} {"choices": []}\n\n', b"0\r\n\r\n"]


@st.composite
def responses(draw):
    """Draw a response of any kind, with any fault that HTTP leaves room for."""
    kind = draw(st.sampled_from(["stream", "answer", "refusal", "anything"]))
    body = draw(
        {"stream": damaged(), "answer": st.sampled_from(ANSWERS), "refusal": st.sampled_from(REFUSALS)}.get(
            kind, st.binary(max_size=40)
        )
    )
    status = draw(st.sampled_from(STATUSES)) if kind in ("refusal", "anything") else 200
    fields = {"content_type": "application/json" if kind == "answer" else draw(st.sampled_from(TYPES))}
    if kind == "refusal":
        fields["retry_after"] = draw(st.sampled_from(WAITS))
    if encoding := draw(st.sampled_from(["", "", "", "gzip", "gzip", "deflate", "br", "nope"])):
        fields["content_encoding"] = encoding
        body = gzip.compress(body, mtime=0) if draw(st.booleans()) else body
    more, data = framed(body, draw(framings), draw(places))
    if draw(st.integers(0, 9)) == 0:
        more = {"content_length": draw(st.sampled_from([0, 1, len(data) + 9, -1, "x", "1, 2", "9" * 99]))}
    if draw(st.integers(0, 9)) == 0:
        more = {"transfer_encoding": draw(st.sampled_from(["chunked, chunked", "x", "gzip, chunked"]))}
    sent = bytearray(head(status, **fields, **more) + data)
    if draw(st.integers(0, 4)) == 0:
        place = draw(st.integers(0, len(sent)))
        sent[place : place + 1] = draw(st.sampled_from(GARBAGE) | st.binary(max_size=9))
    return Play(tuple(cut(bytes(sent), draw(places))), draw(st.sampled_from(["eof", "eof", "eof", "reset", "hang"])))
