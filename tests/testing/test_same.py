"""`same_rows` leaves out attempts, ids and times, and nothing else."""

from dataclasses import replace

import pytest

from streamagent import Message
from streamagent.testing import same_rows


def life(*, early=(), swapped=False, said="Done.", approval="approve"):
    """A turn with two calls, one approved; `early` are the rows of earlier attempts at it."""
    first, second = (Message(type="tool_call", query={"tool": name, "id": name, "args": {}}) for name in "ab")
    request = Message(role="tool", type="approval", query={"call": second.id})
    answers = [result(first), request]
    paused = Message.stop("paused", approvals=[request.id], run={"turns": 1, "since": 1 + len(early)})
    decision = Message(role="user", type="approval", query={"approval": request.id, "decision": approval})
    turn = [first, second, Message.stop("tool_calls"), *(reversed(answers) if swapped else answers), paused]
    rows = [Message.user("Go."), *early, Message.user("Now."), *turn, decision, result(second)]
    rows += [Message(content=said), Message.stop("stop")]
    return [replace(row, sequence=number) for number, row in enumerate(rows, 1)]


def result(call, **query):
    return Message(role="tool", type="tool_result", content="ok", query={"call": call.id, **query})


def attempt():
    lost = Message(type="tool_call", query={"tool": "a", "id": "a", "cut": "resumed"})
    return [
        Message(content="Half", attempt=2),
        lost,
        result(lost, cut="resumed"),
        Message.stop("aborted", cut="resumed"),
    ]


def test_attempts_ids_and_the_order_of_answers_do_not_count():
    same_rows(life(early=[*attempt(), *attempt()]), life())
    same_rows(life(swapped=True), life())


@pytest.mark.parametrize(
    ("cut", "told"),
    [
        ({"said": "Don."}, "Don."),
        ({"approval": "reject"}, "reject"),
        ({"early": attempt()[:1]}, "Half"),
        ({"early": [Message.stop("aborted", cut="crashed")]}, "crashed"),
    ],
)
def test_a_difference_is_told(cut, told):
    with pytest.raises(AssertionError, match=rf"(?m)^\+.*{told}"):
        same_rows(life(**cut), life())


def test_a_row_that_is_missing_or_names_another_one_is_told():
    rows = life()
    with pytest.raises(AssertionError, match=r"(?m)^-.*Go\."):
        same_rows(rows[1:], life())
    calls = [row for row in rows if row.type == "tool_call"]
    other = [replace(row, query={"call": calls[0].id}) if row == rows[-3] else row for row in rows]
    with pytest.raises(AssertionError, match="tool_result"):
        same_rows(other, life())
