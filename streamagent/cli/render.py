"""What a reader sees of an answer: its text on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

from streamagent.message import Message, fold
from streamagent.reply import Result

from .escape import compact, printable, shorten
from .output import writing

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 200  # characters of a call's arguments or a result that are shown


class View:
    """Shows an answer, message by message."""

    def __init__(self) -> None:
        self._unfinished: TextIO | None = None  # where the last line has no end yet

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        return Console(file=sys.stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def show(self, message: Message) -> None:
        """Show the next fragment."""

    def close(self) -> None:
        """Show what is left when the answer is over."""
        self._end_line()

    @writing()
    def note(self, text: str, style: str = "dim") -> None:
        """Print a line to standard error."""
        self._end_line()
        self._console.print(printable(text), style=style)

    @writing()
    def _write(self, text: str, stream: TextIO, write: Callable[[str], object]) -> None:
        if not text:
            return
        if self._unfinished is not stream:
            self._end_line()
        write(printable(text))
        stream.flush()
        self._unfinished = None if text.endswith("\n") else stream

    @writing()
    def _end_line(self) -> None:
        if self._unfinished is not None:
            print(file=self._unfinished, flush=True)
            self._unfinished = None


class Terminal(View):
    """Streams: text as it comes, reasoning dimmed, tool calls and results as a line each; of sub-agents only these."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[str, str] = {}  # arguments of open calls as the model writes them, as far as they are shown

    def show(self, message: Message) -> None:
        """Show the next fragment."""
        indent = "  " * len(message.path)
        match message.type:
            case "text" if message.role == "assistant" and not indent:
                self._write(message.content, sys.stdout, sys.stdout.write)
            case "reasoning" if not indent:
                self._write(message.content, sys.stderr, self._dim)
            case "progress":
                self.note(indent + message.content)
            case "tool_call":
                self._call(message, indent)
            case "tool_result" if not message.more:
                style = "red" if _query(message).get("is_error") else "cyan"
                self.note(f"{indent}← {result_line(message)}", style=style)

    def _call(self, message: Message, indent: str) -> None:
        written = self._calls.pop(message.id, "") + message.content
        if message.more:
            self._calls[message.id] = written[: 2 * _WIDTH]
        else:
            self.note(f"{indent}→ {call_line(message, written)}", style="cyan")

    def _dim(self, text: str) -> None:
        self._console.print(text, style="dim", end="")


class Final(View):
    """Waits, then prints the text of the final answer."""

    def __init__(self) -> None:
        super().__init__()
        self._fragments: list[Message] = []

    def show(self, message: Message) -> None:
        """Keep the next fragment."""
        self._fragments.append(message)

    def close(self) -> None:
        """Print the answer."""
        messages, self._fragments = fold(self._fragments), []
        self._print(messages)
        super().close()

    def _print(self, messages: list[Message]) -> None:
        self._write(Result(messages).text, sys.stdout, sys.stdout.write)


class JsonMessages(Final):
    """Waits, then prints whole messages as JSON, one a line."""

    def _print(self, messages: list[Message]) -> None:
        for message in messages:
            print_json(message)


class JsonFragments(View):
    """Prints fragments as JSON as they come, one a line."""

    def show(self, message: Message) -> None:
        """Print the next fragment."""
        print_json(message)


def make_view(*, json: bool, stream: bool) -> View:
    """Choose how an answer is shown."""
    if json:
        return JsonFragments() if stream else JsonMessages()
    return Terminal() if stream else Final()


@writing()
def print_json(message: Message) -> None:
    """Print a message as one line of JSON, safe for a terminal."""
    print(printable(message.to_json().decode()), flush=True)


def call_line(call: Message, written: str) -> str:
    """Say what is called, in one line; with the arguments as they were written when they cannot be read."""
    query = _query(call)
    arguments = query.get("args")
    said = compact(arguments) if arguments is not None else written
    why = f" [{query['invalid']}]" if query.get("invalid") else ""
    return f"{query.get('tool')} {shorten(said, _WIDTH)}{why}"


def result_line(result: Message) -> str:
    """Say what a call gave, in one line: itself when it is short."""
    lines = result.content.splitlines()
    if _query(result).get("is_error"):
        return f"error: {shorten(result.content, _WIDTH)}"
    return shorten(result.content, _WIDTH) if len(lines) == 1 else f"{len(lines)} lines"


def stop_note(stop: Message) -> str | None:
    """Say why an answer ended, when it did not end well."""
    query = _query(stop)
    error = query.get("error")
    if error:
        return f"{query.get('reason')}: {error.get('kind')}: {error.get('message')}"
    if query.get("reason") in ("stop", "tool_calls"):
        return None
    if query.get("reason") == "paused":
        count = len(query["approvals"])
        calls = "1 call waits" if count == 1 else f"{count} calls wait"
        return f"paused: {calls} for an approval: streamagent approve {stop.session}"
    limit = query.get("limit")
    return f"ended: {query.get('reason')}" + (f" {compact(limit)}" if limit else "")


def _query(message: Message) -> dict[str, Any]:
    return dict(message.query or {})
