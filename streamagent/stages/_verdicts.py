"""What a call that was not run, or failed, has as its result."""

from __future__ import annotations

import logging

from streamagent._core import closing
from streamagent._core.output import error_output
from streamagent.calls import Output
from streamagent.cancellation import must_propagate

logger = logging.getLogger("streamagent")

BLOCKED = "Tool execution was blocked"

SKIPPED = Output("Skipped: the user said something new.", is_error=True)

UNKNOWN = Output(closing.UNKNOWN, is_error=True)

UNSEEN = Output("It was executed, but the run was cut before its output had passed all checks.", is_error=True)

REFUSED = {
    "bad_json": "Not executed: the arguments are not valid JSON. Send the call again with valid JSON. Received: {raw}",
    "not_object": "Not executed: the arguments must be a JSON object. Received: {raw}",
    "repetition": "Not executed: the same call was made too often. Do something else.",
    "truncated": "Not executed: the answer was cut off before this call was complete. Send the call again.",
}


class Blocked(Exception):
    """`before_tool_call` blocks a call; `output` is its result."""

    def __init__(self, output: Output) -> None:
        self.output = output


def failure(error: BaseException) -> Output:
    """Make a result of what a tool or a hook raised: they are foreign code, their failure is data."""
    if must_propagate(error):
        raise error
    return error_output(error)


def unknown(error: BaseException, call: str) -> Output:
    """Make a result of what was raised while it was looked up what became of a call that had begun before a crash."""
    failure(error)
    logger.error("call %s: what came of it cannot be found out, so its outcome is unknown", call, exc_info=error)
    return UNKNOWN
