"""Output that is closed or full, and errors that are not the output's."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from streamagent.cli.chat import chat
from streamagent.cli.exits import exit_codes
from streamagent.cli.output import OutputError, discard, prepare_output, writing

from .programs import command, environment, invoke, types

FULL = Path("/dev/full")


def shell(redirect, *args, cwd, **extra):
    line = f'exec "$@" {redirect}'
    return subprocess.run(
        ["sh", "-c", line, "sh", *command(*args)],
        cwd=cwd,
        env=environment(PYTHONWARNINGS="error", **extra),
        capture_output=True,
        encoding="utf-8",
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize("args", [["run", "hi", "--session", "a"], ["sessions", "list"]])
def test_a_closed_standard_output_is_told_in_a_line(tmp_path, args):
    done = shell(">&-", *args, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "streamagent: standard output is closed\n")


def test_a_closed_standard_error_is_nobodys_loss(tmp_path):
    done = shell("2>&-", "run", "hi", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "This is a mock answer to: hi\n")


def test_a_chat_without_standard_input_is_told_in_a_line(tmp_path):
    done = shell("<&-", "chat", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "standard input is closed" in done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "args", [["run", "hi", "--session", "a"], ["sessions", "list"], ["sessions", "list", "--json"]], ids=" ".join
)
def test_a_full_disk_is_told_in_a_line_and_the_session_is_at_rest(tmp_path, args, unbuffered):
    invoke("run", "hello", "--session", "a")
    done = shell(f">{FULL}", *args, cwd=tmp_path, PYTHONUNBUFFERED=unbuffered)
    assert done.stderr == "streamagent: standard input or output failed: No space left on device\n"
    assert done.returncode == 1
    assert types("a")[-1] == "stop"


def test_streams_that_are_none(monkeypatch, capsys):
    """As Python sets them when they are closed."""
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(typer.Exit):
        chat()
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(typer.Exit), exit_codes():
        pytest.fail("the command began")
    assert "input is closed" in (told := capsys.readouterr().err)
    assert "output is closed" in told


def test_what_cannot_be_written_is_a_failure(capsys):
    with pytest.raises(typer.Exit, check=lambda ending: ending.exit_code == 1), exit_codes(), writing():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert capsys.readouterr().err == "streamagent: standard input or output failed: No space left on device\n"


def test_a_reader_that_left_is_not_told_of():
    with pytest.raises(BrokenPipeError), writing():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_an_error_of_the_target_is_not_taken_for_one_of_the_output(capsys):
    with pytest.raises(typer.Exit, check=lambda ending: ending.exit_code == 1), exit_codes():
        Path("nothing").read_text()
    told = capsys.readouterr().err
    assert "FileNotFoundError: [Errno 2]" in told
    assert "standard input or output" not in told


def test_a_standard_error_that_is_closed_is_replaced(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    assert prepare_output()
    with sys.stderr:
        print("nobody is told", file=sys.stderr)


def test_what_waits_in_a_full_stream_is_thrown_away(tmp_path, monkeypatch):
    class Full:
        def __init__(self, file):
            self.fileno = file.fileno

        def flush(self):
            raise OutputError(errno.ENOSPC, "No space left on device")

    with (tmp_path / "full").open("w") as file:
        monkeypatch.setattr("sys.stdout", Full(file))
        discard()
        file.write("gone")
    assert (tmp_path / "full").read_text() == ""
