"""`streamagent sessions follow`."""

import json
import signal

import pytest

from streamagent import Cursor

from .programs import call, invoke, rows, start
from .test_processes import start_story
from .test_sessions import fill


def follow(*args):
    return invoke("sessions", "follow", *args, "--until-rest")


def test_it_shows_what_is_stored_and_where_to_go_on():
    invoke("run", "hi", "--session", "a")
    shown = follow("a")
    assert (shown.exit_code, shown.stdout) == (0, "This is a mock answer to: hi\n")
    first, last = shown.stderr.splitlines()
    assert (first, last.rpartition(" ")[0]) == ("> hi", "go on with --after")
    again = follow("a", "--after", last.split()[-1])
    assert (again.exit_code, again.output) == (0, "")
    invoke("run", "and now", "--session", "a")
    assert follow("a", "--after", last.split()[-1]).stdout == "This is a mock answer to: and now\n"


def test_it_begins_within_a_message():
    invoke("run", "hi", "--session", "a")
    assert follow("a", "--after", "1:5").stdout == "is a mock answer to: hi\n"


def test_as_json_it_gives_fragments():
    invoke("run", "x" * 100_000, "--session", "a")
    fragments = [json.loads(line) for line in follow("a", "--json").stdout.splitlines()]
    assert "".join(part["content"] for part in fragments if part["sequence"] == 1) == "x" * 100_000
    assert [part["sequence"] for part in fragments if not part.get("more")] == [1, 2, 3]


def test_what_was_cut_is_said():
    async def work(store):
        from streamagent import Message

        await store.write("a", [Message(content="half"), Message.stop("aborted")], fence=await store.acquire("a"))

    fill(work)
    shown = follow("a")
    assert (shown.exit_code, shown.stdout) == (0, "half\n")
    assert "ended: aborted" in shown.stderr


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["a", "--after", "4"], 2, "ahead of session 'a', which has 3 messages"),
        (["a", "--after", "soon"], 2, "a cursor is like '12'"),
        (["nobody", "--after", "1"], 1, "deleted"),
        (["nobody", "--db", "nothing.db"], 1, "there is no database"),
    ],
)
def test_a_place_that_is_not_there_is_an_error(args, code, text):
    invoke("run", "hi", "--session", "a")
    shown = follow(*args)
    assert (shown.exit_code, shown.stdout) == (code, "")
    assert text in shown.stderr
    assert "go on" not in shown.stderr


def test_a_session_without_messages_is_said_to_have_none():
    invoke("run", "hi", "--session", "a")
    shown = follow("nobody")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "", "session nobody has no messages yet\n")


def test_it_shows_live_what_another_process_says_until_an_interrupt(tmp_path):
    viewer = None
    story = start_story(tmp_path)
    try:
        viewer = start("sessions", "follow", "a", cwd=tmp_path)
        assert viewer.stdout.read(4) == "Once"
        story.send_signal(signal.SIGINT)
        story.communicate(timeout=30)
        assert viewer.stdout.read(2) == " \n"  # the story was cut, and its viewer is told
        viewer.send_signal(signal.SIGINT)
        _, errors = viewer.communicate(timeout=30)
    finally:
        for process in (story, viewer):
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate(timeout=30)
    assert viewer.returncode == 130
    asked, cut, where = errors.splitlines()
    assert (asked, cut) == ("> tell me a story", "ended: aborted")
    assert Cursor.parse(where.split()[-1]) == Cursor(rows("a")[-1]["sequence"])


def test_with_a_session_that_is_at_rest_it_ends_at_once_in_a_process_of_its_own(tmp_path):
    call("run", "hi", "--session", "a", cwd=tmp_path)
    done = call("sessions", "follow", "a", "--until-rest", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "This is a mock answer to: hi\n")
