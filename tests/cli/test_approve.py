"""`streamagent approve`, `run --resume`, and a chat whose calls wait."""

import json
from pathlib import Path

import pytest

from .programs import REFUNDS, call, invoke, rows, types


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "refunds.py"
    path.write_text(REFUNDS)
    return str(path)


def effects():
    path = Path("effects.txt")
    return path.read_text().split() if path.exists() else []


def waiting(*args):
    result = invoke("approve", *args, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def waiting_ids(folder):
    listed = call("approve", "s", "--json", cwd=folder)
    return [json.loads(line)["id"] for line in listed.stdout.splitlines()]


def test_a_call_that_one_process_asks_about_a_second_decides_and_a_third_executes(target, tmp_path):
    asked = call("run", target, "--session", "s", cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr
    assert "streamagent approve s" in asked.stderr
    listed = call("approve", cwd=tmp_path)
    session, approval, rest = listed.stdout.split(maxsplit=2)
    assert (session, rest) == ("s", 'refund {"order":"A1"}\n')
    decided = call("approve", "s", approval, "--by", "Ada", cwd=tmp_path)
    assert (decided.returncode, decided.stderr.splitlines()[0]) == (0, "approved 1")
    assert "streamagent run TARGET --session s --resume" in decided.stderr
    assert effects() == []
    executed = call("run", target, "--session", "s", "--resume", cwd=tmp_path)
    assert (executed.returncode, executed.stdout) == (0, "refunded A1!\n")
    assert effects() == ["A1"]
    again = call("run", target, "--session", "s", "--resume", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, "")
    assert "session 's' has nothing to do" in again.stderr
    assert effects() == ["A1"]
    assert types("s") == [
        *("text", "tool_call", "stop", "approval", "stop"),
        *("approval", "tool_result", "text", "stop"),
    ]
    assert rows("s")[5]["query"]["by"] == "Ada"


def test_a_rejection_is_told_to_the_model(target):
    invoke("run", target, "--session", "s")
    assert "rejected 1" in invoke("approve", "s", "--all", "--reject", "--reason", "too much").output
    result = invoke("run", target, "--session", "s", "--resume")
    assert "Rejection Reason: too much" in result.stdout
    assert effects() == []


def test_a_call_can_be_run_with_other_arguments(target):
    invoke("run", target, "--session", "s")
    invoke("approve", "s", "--all", "--args", '{"order": "B2"}')
    invoke("run", target, "--session", "s", "--resume")
    assert effects() == ["B2"]


def test_always_covers_the_next_call(target):
    invoke("run", target, "--session", "s")
    invoke("approve", "s", "--all", "--always", '{"order": "A*"}')
    invoke("run", target, "--session", "s", "--resume")
    invoke("run", target, "Refund A2 and B1.", "--session", "s")
    assert effects() == ["A1", "A2"]
    assert [item["args"] for item in waiting("s")] == [{"order": "B1"}]


def test_the_calls_of_one_session_or_of_all_are_listed(target):
    for session in ("one", "two"):
        invoke("run", target, "--session", session)
    assert sorted(item["session"] for item in waiting()) == ["one", "two"]
    assert [item["session"] for item in waiting("one")] == ["one"]
    assert waiting("nobody") == []


def test_what_is_shown_hides_nothing(target):
    order = "\u202eA1" + "x" * 5000
    invoke("run", target, f"Refund {order}.", "--session", "s")
    shown = invoke("approve").stdout
    assert "\u202e" not in shown
    assert "\\u202eA1" in shown
    assert f"({len(order) + len(json.dumps({'order': ''}, separators=(',', ':')))} characters, sha256 " in shown


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["s", "nothing"], 1, "there is no approval 'nothing'"),
        (["s", "--all", "--args", "{"], 2, "--args is not JSON"),
        (["s", "--all", "--always", "[]"], 2, "--always is a JSON object"),
        (["s", "--all", "--reason", "x"], 2, "a reason is for a rejected call"),
        (["s", "--all", "--reject", "--args", "{}"], 2, "a rejected call takes no `args`"),
        (["--all"], 2, "--all is about a session"),
        (["s", "nothing", "--all"], 2, "not both"),
        (["s", "--reject"], 2, "--reject"),
        (["s", "--reason", "x"], 2, "--reason"),
        (["s", "--args", "{}"], 2, "--args"),
        (["s", "--always", "{}"], 2, "--always"),
        (["s", "--by", "Ada"], 2, "--by"),
        (["--reject"], 2, "--reject"),
        (["nosuch", "--all"], 1, "no call waits in session 'nosuch'"),
    ],
)
def test_a_wrong_use_is_said(target, args, code, text):
    invoke("run", target, "--session", "s")
    result = invoke("approve", *args)
    assert (result.exit_code, text in result.output) == (code, True), result.output


def test_resume_needs_a_session(target):
    result = invoke("run", target, "--resume")
    assert result.exit_code == 2
    assert "--session" in result.output


@pytest.mark.parametrize("args", [("{target}", "Refund B2."), ("Refund B2.",)])
def test_resume_asks_nothing(target, args):
    result = invoke("run", *(item.format(target=target) for item in args), "--session", "s", "--resume")
    assert (result.exit_code, "--resume asks nothing" in result.output) == (2, True), result.output


def test_resume_says_what_still_waits(target):
    invoke("run", target, "--session", "s")
    result = invoke("run", target, "--session", "s", "--resume")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "1 call waits for an approval: streamagent approve s" in result.stderr


def test_in_a_chat_a_line_decides_about_the_call_that_was_shown(target, tmp_path, monkeypatch):
    """Another process decides about the first call while somebody thinks: `yes` was not said about the second."""

    def answers():
        yield "Refund A1 and B2."
        assert call("approve", "s", waiting_ids(tmp_path)[0], "--reject", cwd=tmp_path).returncode == 0
        yield "yes"
        yield "not this one"
        raise EOFError

    lines = answers()
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    result = invoke("chat", target, "--session", "s")
    assert result.exit_code == 0, result.output
    assert "was decided otherwise before: 'reject'" in result.stderr
    assert result.stderr.count('run refund {"order":"B2"}? yes, or why not') == 1
    assert "Rejection Reason: not this one!" in result.stdout
    assert effects() == []


def test_in_a_chat_a_line_that_cannot_be_a_decision_is_asked_again(target):
    result = invoke("chat", target, "--session", "s", stdin="Refund A1.\nedit\nyes\n")
    assert result.exit_code == 0, result.output
    assert "an edit needs the arguments" in result.stderr
    assert effects() == ["A1"]


def test_in_a_chat_the_next_lines_decide(target):
    result = invoke("chat", target, "--session", "s", stdin="Refund A1 and B2.\nyes\nnot this one\n/exit\n")
    assert result.exit_code == 0, result.output
    assert 'run refund {"order":"A1"}? yes, or why not' in result.output
    assert "Rejection Reason: not this one!" in result.output
    assert effects() == ["A1"]


def test_a_chat_begins_with_what_waits(target):
    invoke("run", target, "--session", "s")
    result = invoke("chat", target, "--session", "s", stdin="ok\n")
    assert "refunded A1!" in result.output
    assert effects() == ["A1"]
