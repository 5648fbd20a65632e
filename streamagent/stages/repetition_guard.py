"""`repetition_guard`: the same call, again and again, ends the run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from streamagent._core.digest import call_digest
from streamagent.errors import ConfigError
from streamagent.message import Message
from streamagent.protocols import RunContext, Stage, Stream

from ._counting import earlier, limit_stop

_RAW = 64 * 1024  # characters of unreadable arguments that are compared; two that differ only behind them are equal


def repetition_guard(times: int = 3) -> Stage:
    """Refuse a call that was made before in answer to the same prompt, with the same arguments, and end the run.

    The refused call is stored and gets an error result, but is not run; the others of its turn are run. Then the stream
    ends with a `stop` of reason `repetition` whose `limit` names the number and the tool. Calls that fail, that are
    denied or whose arguments cannot be read count as well. Stand it before `tool_dispatch`.

    Args:
        times: The call of which number is refused; 2 refuses the first repetition.

    Raises:
        ConfigError: `times` is no whole number from 2.
    """
    if not isinstance(times, int) or times < 2:  # noqa: PLR2004 - the second call is the first that can repeat
        raise ConfigError(f"repetition_guard takes times of 2 or more, not {times!r}: the second call is a repetition")

    async def stage(stream: Stream, run: RunContext) -> Stream:
        calls = _Calls(times)
        async for row in earlier(run):
            if row.type == "tool_call":
                calls.judge(row)
        async for message in stream:
            if message.role == "user" and message.type not in ("approval", "cancel"):
                calls = _Calls(times)
            if message.type == "stop" and calls.repeated is not None:
                yield limit_stop("repetition", {"repetitions": times, "tool": calls.repeated}, message)
                return
            new = message.type == "tool_call" and message.sequence is None  # else it was judged before the crash
            yield calls.judge(message) if new else message

    return stage


class _Calls:
    """The calls that answer one prompt, in 100 bytes each."""

    def __init__(self, times: int) -> None:
        self._times = times
        self._seen: Counter[str] = Counter()
        self._open: dict[str, str] = {}
        self.repeated: str | None = None

    def judge(self, fragment: Message) -> Message:
        """Pass a fragment of a call on; the last one of a call that was made too often says that it must not run."""
        raw = (self._open.pop(fragment.id, "") + fragment.content)[:_RAW]
        if fragment.more:
            self._open[fragment.id] = raw
            return fragment
        query = fragment.query or {}
        digest = call_digest(query, raw)
        self._seen[digest] += 1
        if self._seen[digest] < self._times:
            return fragment
        self.repeated = str(query.get("tool"))
        return replace(fragment, query={"invalid": "repetition", **query})
