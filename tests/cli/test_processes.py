"""`streamagent run` as a real process: signals, broken pipes, kills, other encodings."""

import os
import signal
import subprocess

import pytest

from .programs import PIPELINES, call, command, environment, invoke, rows, start, types, write_slow_recording


def cut_marks(session):
    return [(row["type"], (row.get("query") or {}).get("cut")) for row in rows(session)]


def start_story(folder, *options):
    write_slow_recording(folder / "slow.jsonl")
    process = start("run", "tell me a story", "-m", "replay:slow.jsonl", "--session", "a", *options, cwd=folder)
    assert process.stdout.read(4) == "Once"
    return process


def test_an_answer_streams_and_is_stored(tmp_path):
    done = call("run", str(PIPELINES / "echo.py"), "Is anybody there?", "--session", "a", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Is anybody there?\n", "")
    assert types("a") == ["text", "text", "stop"]


def test_an_interrupt_cuts_the_answer_and_keeps_what_was_said(tmp_path):
    process = start_story(tmp_path)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "ended: aborted\n")
    assert cut_marks("a") == [("text", None), ("text", "aborted"), ("stop", None)]
    assert rows("a")[1]["content"] == "Once "


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_cut_the_answer_too(tmp_path, number):
    process = start_story(tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (128 + number, "ended: aborted\n")
    assert cut_marks("a") == [("text", None), ("text", "aborted"), ("stop", None)]


def test_a_signal_at_the_prompt_ends_a_chat(tmp_path):
    process = start("chat", "--session", "a", cwd=tmp_path)
    process.stdin.write("hi\n")
    process.stdin.flush()
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    process.communicate()
    assert types("a") == ["text", "text", "stop"]


def test_a_running_session_is_shown_from_another_process(tmp_path):
    process = start_story(tmp_path)
    try:
        shown = call("sessions", "show", "a", cwd=tmp_path)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert shown.returncode == 0
    assert "tell me a story" in shown.stdout


def test_a_running_session_is_cancelled_from_another_process(tmp_path):
    process = start_story(tmp_path)
    cut = call("sessions", "cancel", "a", "--reason", "bedtime", cwd=tmp_path)
    _, errors = process.communicate(timeout=30)
    assert (cut.returncode, cut.stdout, cut.stderr) == (0, "", "")
    assert (process.returncode, errors) == (1, "ended: aborted\n")
    assert cut_marks("a") == [("text", None), ("text", "aborted"), ("cancel", None), ("stop", None)]
    assert rows("a")[2]["query"] == {"reason": "bedtime"}


def test_after_a_kill_the_answer_is_marked_and_the_next_prompt_is_answered(tmp_path):
    process = start_story(tmp_path)
    process.kill()
    process.communicate(timeout=30)
    done = call("run", "hello there", "--session", "a", cwd=tmp_path)
    assert done.stdout.endswith("This is a mock answer to: hello there\n")
    assert "interrupted" in done.stderr
    assert rows("a")[-1]["query"]["reason"] == "stop"


def test_a_reader_that_leaves_ends_the_program_quietly(tmp_path):
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        command("run", "hello there", "--session", "a"),
        cwd=tmp_path,
        env=environment(),
        stdout=write_end,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    os.close(write_end)
    os.close(read_end)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (1, "")


def test_a_terminal_without_unicode_gets_escapes(tmp_path):
    done = subprocess.run(
        command("run", "größer", "--no-stream", "--session", "a"),
        cwd=tmp_path,
        env=environment(PYTHONIOENCODING="ascii"),
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"This is a mock answer to: gr\\xf6\\xdfer\n")


def test_the_next_process_continues_the_session(tmp_path):
    call("run", "one", "--session", "a", cwd=tmp_path)
    call("run", "two", "--session", "a", cwd=tmp_path)
    assert [row["sequence"] for row in rows("a")] == [1, 2, 3, 4, 5, 6]


def test_importing_the_command_line_loads_nothing_heavy(tmp_path):
    heavy = "('litellm', 'rich', 'pydantic', 'aiosqlite')"
    code = f"import sys, streamagent.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [command()[0], "-c", code], cwd=tmp_path, env=environment(), capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout == "[]\n"


def test_invoke_and_a_process_say_the_same(tmp_path):
    done = call("run", "hello there", "--session", "a", cwd=tmp_path)
    assert invoke("run", "hello there", "--session", "b").stdout == done.stdout
