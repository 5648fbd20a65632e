"""`streamagent sessions export` and `import`."""

import json
import os
import pty
import subprocess
from pathlib import Path

import anyio
import pytest

from streamagent import Message, SqliteStore

from .programs import call, command, environment, invoke, rows


def export(session="a", file="a.jsonl"):
    result = invoke("sessions", "export", session)
    assert (result.exit_code, result.stderr) == (0, "")
    Path(file).write_bytes(result.stdout_bytes)
    return result.stdout_bytes


def test_a_session_that_was_exported_is_imported_into_a_new_database():
    invoke("run", "Hello? é𝄞", "--session", "a")
    data = export()
    result = invoke("sessions", "import", "a.jsonl", "--db", "new.db")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "a\n", "")
    assert rows("a", "new.db") == rows("a")
    assert invoke("sessions", "export", "a", "--db", "new.db").stdout_bytes == data


def test_import_under_another_id():
    invoke("run", "Hello?", "--session", "a")
    export()
    assert invoke("sessions", "import", "a.jsonl", "--as", "b").stdout == "b\n"
    assert [row["id"] for row in rows("b")] == [row["id"] for row in rows("a")]


def test_what_was_imported_is_continued():
    invoke("run", "One?", "--session", "a")
    export()
    invoke("sessions", "import", "a.jsonl", "--db", "new.db")
    assert invoke("run", "Two?", "--session", "a", "--db", "new.db").exit_code == 0
    assert [row["content"] for row in rows("a", "new.db") if row["role"] == "user"] == ["One?", "Two?"]


def test_export_is_redirected_as_bytes_whatever_the_terminal_can_show(tmp_path):
    call("run", "é", "--session", "a", cwd=tmp_path)
    with (tmp_path / "a.jsonl").open("wb") as output:
        done = subprocess.run(
            command("sessions", "export", "a"),
            cwd=tmp_path,
            env=environment(PYTHONIOENCODING="ascii"),
            stdout=output,
            timeout=50,
            check=True,
        )
    assert done.returncode == 0
    assert "é" in (tmp_path / "a.jsonl").read_text("utf-8")
    assert call("sessions", "import", "a.jsonl", "--as", "b", cwd=tmp_path).stdout == "b\n"


def test_export_refuses_a_terminal(tmp_path):
    call("run", "hi", "--session", "a", cwd=tmp_path)
    main, terminal = pty.openpty()
    done = subprocess.run(
        command("sessions", "export", "a"),
        cwd=tmp_path,
        env=environment(),
        stdout=terminal,
        stderr=subprocess.PIPE,
        timeout=50,
        check=False,
    )
    os.close(terminal)
    os.close(main)
    assert done.returncode == 2
    assert b"not for a terminal; write `> session.jsonl` behind" in done.stderr


def test_export_of_an_unknown_session():
    invoke("run", "hi", "--session", "a")
    result = invoke("sessions", "export", "b")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no session 'b'" in result.stderr


def test_a_file_that_was_cut_off_is_refused_and_leaves_nothing():
    invoke("run", "hi", "--session", "a")
    Path("cut.jsonl").write_bytes(export()[:-50])
    result = invoke("sessions", "import", "cut.jsonl", "--as", "b")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "streamagent: line 5: it is not JSON" in result.stderr
    assert invoke("sessions", "show", "b").exit_code == 1


def test_what_a_file_says_is_safe_for_the_terminal():
    Path("a.jsonl").write_text(json.dumps({"streamagent": "\x1b[2J\u009b"}))
    result = invoke("sessions", "import", "a.jsonl")
    assert result.exit_code == 1
    assert not {"\x1b", "\u009b"} & set(result.stderr)


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["nothing.jsonl"], 1, "there is no file 'nothing.jsonl'"),
        (["."], 1, "there is no file '.'"),
        (["a.jsonl"], 1, "session 'a' exists; import it under another id"),
        (["a.jsonl", "--as", ""], 2, "a session id is 1 to 256"),
        (["a.jsonl", "--max-size", "10"], 1, "more than 10 bytes"),
        (["a.jsonl", "--max-size", "big"], 2, "--max-size is a size such as 500KB"),
    ],
)
def test_an_import_that_cannot_be_made_is_an_error(args, code, text):
    invoke("run", "hi", "--session", "a")
    export()
    result = invoke("sessions", "import", *args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert text in result.stderr


def test_a_file_that_cannot_be_read_is_an_error(monkeypatch):
    Path("a.jsonl").touch()

    async def refuse(*_args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(anyio, "open_file", refuse)
    result = invoke("sessions", "import", "a.jsonl")
    assert result.exit_code == 1
    assert "'a.jsonl' cannot be read: Permission denied" in result.stderr


def test_a_session_that_is_held_by_nobody_is_exported_as_it_is():
    """Open messages, calls and the inbox, too."""

    async def main():
        async with SqliteStore("streamagent.db") as store:
            fence = await store.acquire("a")
            await store.write("a", [Message(content="half", more=True)], fence=fence)
            await store.enqueue("a", Message.user("wait"))

    anyio.run(main)
    export()
    invoke("sessions", "import", "a.jsonl", "--as", "b")
    assert [line.split()[-1] for line in invoke("sessions", "show", "b").stdout.splitlines()[1:]] == ["open", "waiting"]
