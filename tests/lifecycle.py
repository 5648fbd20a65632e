"""What tests of the lifecycle events share: streams by hand, events in short, the grammar of their order."""

import re
from datetime import datetime, timezone

from streamagent.events import EventEncoder
from streamagent.message import Message, new_id

AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=timezone.utc)
AT_MS = 1767323045678


def user(content):
    return Message(role="user", content=content, created_at=AT)


def text(*pieces, kind="text"):
    """A message in fragments; the last piece closes it."""
    id_, last = new_id(), len(pieces) - 1
    return [Message(id=id_, type=kind, content=p, more=n < last, created_at=AT) for n, p in enumerate(pieces)]


def call(id_, tool="stock", **query):
    """A complete call; `call.id` is what results name."""
    query = {"tool": tool, "id": id_, "args": {"of": id_}, **query}
    return Message(type="tool_call", content=f'{{"of":"{id_}"}}', query=query, created_at=AT)


def of(asked, **more):
    return {"tool": asked.query["tool"], "id": asked.query["id"], "call": asked.id, **more}


def progress(state, asked, content="", **more):
    """What tool_dispatch says of a call that starts (with `args`), shows something, or ends (with `is_error`)."""
    return Message(role="tool", type="progress", content=content, query=of(asked, state=state, **more), created_at=AT)


def result(asked, content="15", is_error=False, **more):
    query = of(asked, is_error=is_error, **more)
    return Message(role="tool", type="tool_result", content=content, query=query, created_at=AT)


def stop(reason="stop", **query):
    return Message(type="stop", query={"reason": reason, **query}, created_at=AT)


def encode(messages):
    encoder = EventEncoder()
    return [event for message in messages for event in encoder.feed(message)] + encoder.end()


def _content(message):
    if isinstance(message["content"], str):
        return message["content"]
    blocks = [block.get("text") or block.get("thinking") or f"{block.get('id')}()" for block in message["content"]]
    return " ".join(blocks)


def short(event):
    """One line: the type, and what tells one event of the type from another."""
    data = event.to_dict()
    match data["type"]:
        case "message_update":
            said = data["assistantMessageEvent"]
            return " ".join(["message_update", said["type"], *([repr(said["delta"])] if "delta" in said else [])])
        case "message_start" | "message_end":
            message = data["message"]
            ended = message.get("stopReason") if data["type"] == "message_end" else None
            return " ".join(filter(None, [data["type"], message["role"], _content(message), ended and f"({ended})"]))
        case "tool_execution_start":
            return f"tool_execution_start {data['toolCallId']}"
        case "tool_execution_update":
            return f"tool_execution_update {data['toolCallId']} {_content(data['partialResult'])}"
        case "tool_execution_end":
            error = " (error)" if data["isError"] else ""
            return f"tool_execution_end {data['toolCallId']} {_content(data['result'])}{error}"
        case "turn_end":
            return " ".join(["turn_end", *(made["toolCallId"] for made in data["toolResults"])])
        case "agent_end":
            return " ".join(["agent_end", str(len(data["messages"])), *([data["reason"]] if "reason" in data else [])])
        case other:
            return other


def shorts(messages):
    """The run in short, without the updates of the model's blocks."""
    return [line for line in map(short, encode(messages)) if not line.startswith("message_update")]


# A turn: prompts, the answer, then tools and their results in any order; P is a prompt, A an answer, R a result.
_TURN = re.compile(r"\[P*(A)?[seuR]*\]")
_LETTERS = {"tool_execution_start": "s", "tool_execution_update": "u", "tool_execution_end": "e"}


def check_order(events):
    """Assert that the order is one that pi could give, and that what starts ends."""
    if not events:
        return
    assert (events[0].type, events[-1].type) == ("agent_start", "agent_end")
    run = _letters(events[1:-1])
    assert "".join(found.group() for found in _TURN.finditer(run)) == run, run
    for found in re.split(r"(?<=\])", _keyed(events)):
        _check_calls(found)
    ended = [event.message for event in events if event.type == "message_end"]
    assert [*events[-1].messages] == ended


def _letters(events):
    run, opened = "", None
    for event in events:
        if event.type == "message_start":
            assert opened is None
            opened = event.message["role"]
        elif event.type == "message_update":
            assert opened == "assistant"
        elif event.type == "message_end":
            assert opened == event.message["role"]
            run += {"user": "P", "assistant": "A", "toolResult": "R"}[opened]
            opened = None
        else:
            assert opened is None
            run += _LETTERS.get(event.type) or {"turn_start": "[", "turn_end": "]"}[event.type]
    assert opened is None
    return run


def _keyed(events):
    """Tool events as `s:id `, `e:id `, results as `R:id `, turns by their `]`."""
    line = ""
    for event in events:
        if event.type in _LETTERS:
            line += f"{_LETTERS[event.type]}:{event.tool_call_id} "
        elif event.type == "message_end" and event.message["role"] == "toolResult":
            line += f"R:{event.message['toolCallId']} "
        elif event.type == "turn_end":
            line += "]"
    return line


def _check_calls(turn):
    """In a turn whose calls have different ids each goes through start, updates, end, at most one result."""
    steps = [item.split(":") for item in turn.strip("]").split()]
    for id_ in {id_ for _, id_ in steps}:
        own = "".join(step for step, of in steps if of == id_)
        assert re.fullmatch(r"(su*e)+R*", own) or re.fullmatch(r"(su*eR?)+", own), own
