"""A text that its provider did not finish says so, for the next request and for whoever reads the rows."""

import pytest

from streamagent._core.assembler import Assembler
from streamagent._core.request import CUT_MARK, build_request
from streamagent.errors import ModelError
from streamagent.message import Message, fold
from streamagent.testing.provider import delta, finish, text


def marks(messages):
    return [(m.content, m.query) for m in fold(messages) if m.type == "text"]


@pytest.mark.parametrize("how", ["broken", "truncated", "in the stream", "filtered"])
def test_a_text_that_was_not_finished_is_marked(how):
    subject = Assembler()
    messages = subject.feed(text("half"))
    if how == "broken":
        messages += subject.fail(ModelError("reset", kind="connection"))
    elif how == "in the stream":
        messages += subject.feed({"error": {"message": "overloaded"}})
    else:
        messages += subject.feed(finish("content_filter")) if how == "filtered" else []
        messages += subject.end(done=False)
    assert marks(messages) == [("half", {"cut": "content_filter" if how == "filtered" else "error"})]
    assert CUT_MARK in build_request([Message.user("?"), *messages])[-1]["content"]


def test_a_text_that_was_finished_is_not():
    subject = Assembler()
    messages = [*subject.feed(text("whole")), *subject.feed(finish("length")), *subject.end(done=True)]
    assert marks(messages) == [("whole", None)]
    subject = Assembler()
    messages = subject.feed(text("said"), delta(reasoning_content="hm"))
    messages += subject.fail(ModelError("reset", kind="connection"))
    assert marks(messages) == [("said", None)]
