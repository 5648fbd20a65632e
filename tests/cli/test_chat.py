"""`streamagent chat`, in this process and on a terminal."""

import json
import os
import pty
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamagent.cli.chat import _prompts
from streamagent.cli.interrupts import Interrupts

from .programs import INTERRUPTED_STORY, command, environment, invoke, rows, types, write_slow_recording


def test_lines_of_a_pipe_are_answered_one_after_the_other():
    result = invoke("chat", "--session", "a", stdin="one\n\n  two \n")
    assert result.exit_code == 0
    assert result.stdout == "This is a mock answer to: one\nThis is a mock answer to: two\n"
    assert types("a") == ["text", "text", "stop"] * 2


def test_exit_leaves():
    assert invoke("chat", stdin="/exit\nnever\n").stdout == ""


def test_a_new_session_is_named():
    session = invoke("chat", stdin="hi\n").stderr.split()[1].rstrip(";")
    assert types(session) == ["text", "text", "stop"]


def test_a_failed_answer_does_not_end_the_chat():
    lines = [{"error": {"kind": "quota", "message": "no money left"}}, {"end": False}]
    word = {"chunk": {"choices": [{"index": 0, "delta": {"content": "Yes."}, "finish_reason": "stop"}]}}
    Path("two.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, word, {"end": True}]))
    result = invoke("chat", "-m", "replay:two.jsonl", "--session", "a", stdin="one\ntwo\n")
    assert (result.exit_code, result.stdout) == (0, "Yes.\n")
    assert "no money left" in result.stderr


def test_a_wrong_target_ends_with_2():
    result = invoke("chat", "not a target")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'not a target' is no target" in result.stderr


def test_after_an_interrupt_the_chat_goes_on():
    Path("story.py").write_text(INTERRUPTED_STORY)
    result = invoke("chat", "story.py", "--session", "a", stdin="one\ntwo\n")
    assert (result.exit_code, result.stdout) == (0, "Once \nOnce \n")
    assert types("a") == ["text", "text", "stop"] * 2


def test_an_interrupt_at_the_prompt_leaves(monkeypatch):
    def press(prompt):
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", press)
    assert invoke("chat").exit_code == 130


def test_on_a_terminal_there_is_a_prompt(monkeypatch):
    terminal = SimpleNamespace(isatty=lambda: True)
    shown = []
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("builtins.input", lambda prompt: shown.append(prompt) or "/exit")
    assert (list(_prompts(Interrupts())), shown) == ([], ["> "])


class Terminal:
    """A program on a terminal of its own, typed at and read as a person does."""

    def __init__(self, *args: str, cwd: Path) -> None:
        self._end, inner = pty.openpty()
        self.process = subprocess.Popen(
            command(*args),
            cwd=cwd,
            env=environment(TERM="dumb"),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def wait_for(self, text: str, seconds: float = 30) -> None:
        """Read until `text` was seen; what came before it is forgotten."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} never came; seen: {self.seen!r}"
            if select.select([self._end], [], [], left)[0]:
                self.seen += os.read(self._end, 4096).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def interrupt_until_it_leaves(self, times: int = 30) -> int | None:
        """Press Ctrl-C as people do: one that comes before readline waits is only noticed with the next one."""
        for _ in range(times):
            self.interrupt()
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(1)
        return None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)


@pytest.fixture
def terminal(tmp_path):
    write_slow_recording(tmp_path / "slow.jsonl")
    opened = Terminal("chat", "-m", "replay:slow.jsonl", "--session", "a", cwd=tmp_path)
    opened.wait_for("> ")
    yield opened
    opened.close()


def test_the_first_interrupt_cuts_the_answer_and_the_second_leaves(terminal):
    terminal.type("tell me a story\n")
    terminal.wait_for("Once ")
    terminal.interrupt()
    terminal.wait_for("ended: aborted")
    terminal.wait_for("> ")
    assert terminal.interrupt_until_it_leaves() == 130
    assert [(row["type"], (row.get("query") or {}).get("cut")) for row in rows("a")] == [
        ("text", None),
        ("text", "aborted"),
        ("stop", None),
    ]


def test_end_of_input_leaves_a_chat_on_a_terminal(terminal):
    terminal.type("\x04")
    assert terminal.process.wait(30) == 0
