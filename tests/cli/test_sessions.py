"""`streamagent sessions`."""

import json
import re
from pathlib import Path

import anyio
import pytest

from streamagent import Message, SqliteStore

from .programs import PIPELINES, invoke, rows


def lines(*args):
    result = invoke("sessions", *args)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_list_shows_the_latest_session_first():
    invoke("run", "hi", "--session", "first")
    invoke("run", "hi", "--session", "second")
    header, *shown = lines("list")
    assert header.split() == ["session", "messages", "created", "modified"]
    assert [line.split()[:2] for line in shown] == [["second", "3"], ["first", "3"]]


def test_list_as_json():
    invoke("run", "hi", "--session", "a")
    [info] = map(json.loads, lines("list", "--json"))
    assert (info["id"], info["messages"], set(info)) == ("a", 3, {"id", "messages", "created_at", "modified_at"})


def test_list_of_a_database_without_sessions_is_empty():
    invoke("run", "hi", "--session", "a")
    invoke("sessions", "delete", "a")
    assert lines("list") == []


def test_show_prints_a_row_for_each_message():
    invoke("run", str(PIPELINES / "catalog.py"), "Read products.json", "--session", "a")
    header, *shown = lines("show", "a")
    assert header.split() == ["#", "role", "type", "content", "query", "marks"]
    assert [line.split()[:3] for line in shown] == [
        ["1", "user", "text"],
        ["2", "assistant", "tool_call"],
        ["3", "assistant", "stop"],
        ["4", "tool", "tool_result"],
        ["5", "assistant", "text"],
        ["6", "assistant", "stop"],
    ]
    assert '{"path": "products.json"}' in shown[1]


def test_show_as_json_gives_whole_messages_that_can_be_read_again():
    invoke("run", "x" * 300_000, "--session", "a")
    messages = [Message.from_json(line) for line in lines("show", "a", "--json")]
    assert messages[0].content == "x" * 300_000
    assert [message.sequence for message in messages] == [1, 2, 3]


def fill(work):
    async def main():
        async with SqliteStore("streamagent.db") as store:
            await work(store)

    anyio.run(main)


def test_show_marks_what_is_open_cut_or_waiting():
    async def work(store):
        fence = await store.acquire("a")
        cut = Message(content="a", query={"cut": "aborted"})
        await store.write("a", [cut, Message(content="b", more=True)], fence=fence)
        await store.enqueue("a", Message.user("c"))

    fill(work)
    assert [" ".join(line.split()[-2:]) for line in lines("show", "a")[1:]] == ["cut: aborted", "b open", "c waiting"]


def test_show_is_safe_for_the_terminal_and_one_line_a_row():
    async def work(store):
        query = {"a": "\u009b" + "long" * 100}
        await store.write("a", [Message(content="\x1b[2J\nnext" * 100, query=query)], fence=await store.acquire("a"))

    fill(work)
    [_, row] = lines("show", "a")
    assert r"\u001b[2J next" in row
    assert "\x1b" not in row


def test_fork_prints_the_id_of_a_session_that_goes_on_from_there():
    invoke("run", "one", "--session", "a")
    [fork] = lines("fork", "a")
    assert [row["id"] for row in rows(fork)] == [row["id"] for row in rows("a")]
    invoke("run", "two", "--session", fork)
    assert (len(rows(fork)), len(rows("a"))) == (6, 3)


def test_fork_at_a_row_to_an_id_of_ones_own():
    invoke("run", "one", "--session", "a")
    assert lines("fork", "a", "--at", "1", "--new", "b") == ["b"]
    assert [row["content"] for row in rows("b")] == ["one"]


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["nobody"], 2, "session 'nobody' has no messages"),
        (["a", "--at", "4"], 2, "session 'a' has messages 1 to 3; it cannot be forked at 4"),
        (["a", "--new", ""], 2, "a session id is 1 to 256"),
        (["a", "--new", "a"], 1, "session 'a' exists; give the fork another id"),
    ],
)
def test_a_fork_that_cannot_be_made_is_an_error(args, code, text):
    invoke("run", "one", "--session", "a")
    result = invoke("sessions", "fork", *args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert text in result.stderr


def test_a_session_with_forks_is_not_deleted():
    invoke("run", "one", "--session", "a")
    invoke("sessions", "fork", "a", "--new", "b")
    result = invoke("sessions", "delete", "a")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "forks ('b'); delete them first" in result.stderr


def test_a_cancel_without_a_run_waits_for_nothing():
    invoke("run", "hi", "--session", "a")
    result = invoke("sessions", "cancel", "a")
    assert (result.exit_code, result.output) == (0, "")
    assert invoke("run", "and now", "--session", "a").stdout == "This is a mock answer to: and now\n"


def test_a_cancel_of_a_run_whose_process_was_killed_says_so():
    async def work(store):
        await store.write("a", [Message(content="half", more=True)], fence=await store.acquire("a"))

    fill(work)
    result = invoke("sessions", "cancel", "a", "--timeout", "0.1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "session 'a' did not end within 0.1 s" in result.stderr


def test_a_timeout_that_is_no_time_is_a_wrong_use():
    invoke("run", "hi", "--session", "a")
    result = invoke("sessions", "cancel", "a", "--timeout", "0")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "timeout" in result.stderr


@pytest.mark.parametrize("args", [["show", "nobody"], ["cancel", "nobody"], ["delete", "nobody"]])
def test_an_unknown_session_is_an_error(args):
    invoke("run", "hi", "--session", "a")
    result = invoke("sessions", *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no session 'nobody'" in result.stderr


@pytest.mark.parametrize("args", [["list"], ["show", "a"], ["fork", "a"], ["cancel", "a"], ["delete", "a"]])
def test_a_database_that_does_not_exist_is_an_error_and_is_not_made(args):
    result = invoke("sessions", *args, "--db", "nothing.db")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no database 'nothing.db'" in result.stderr
    assert not Path("nothing.db").exists()


def test_a_file_that_is_no_database_is_an_error():
    Path("bad.db").write_text("not a database, whatever its name says" * 100)
    result = invoke("sessions", "list", "--db", "bad.db")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "bad.db" in result.stderr


def test_delete_removes_one_session():
    invoke("run", "hi", "--session", "a")
    invoke("run", "hi", "--session", "b")
    assert invoke("sessions", "delete", "a").exit_code == 0
    assert invoke("sessions", "show", "a").exit_code == 1
    assert len(rows("b")) == 3


def test_on_a_terminal_the_table_fits_its_width(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "70")
    invoke("run", str(PIPELINES / "catalog.py"), "Read products.json", "--session", "a")
    shown = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines("show", "a")]
    assert len(shown) == 7
    assert {len(line) for line in shown} == {70}
