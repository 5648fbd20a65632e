"""`streamagent sessions prune` and `erase`."""

import json
from pathlib import Path

import anyio
import pytest

from streamagent import SqliteStore
from streamagent.cli.quantities import to_bytes, to_seconds
from streamagent.errors import ConfigError
from streamagent.message import Message

from .programs import invoke


def ids():
    return {json.loads(line)["id"] for line in invoke("sessions", "list", "--json").stdout.splitlines()}


def run(*sessions):
    for session in sessions:
        invoke("run", f"canary of {session}", "--session", session)


def test_prune_keeps_the_latest_and_shows_what_goes():
    run("a", "b", "c")
    dry = invoke("sessions", "prune", "--keep", "1", "--dry-run")
    assert (dry.exit_code, dry.stderr, ids()) == (0, "would delete 2 sessions\n", {"a", "b", "c"})
    result = invoke("sessions", "prune", "--keep", "1")
    assert (result.exit_code, result.stdout, result.stderr) == (0, dry.stdout, "deleted 2 sessions\n")
    header, *shown = result.stdout.splitlines()
    assert header.split() == ["session", "why", "messages", "modified"]
    assert sorted(line.split()[:3] for line in shown) == [["a", "count", "3"], ["b", "count", "3"]]
    assert ids() == {"c"}


@pytest.mark.parametrize(
    ("args", "left"),
    [
        (["--older-than", "1h"], {"a/1", "b/1"}),
        (["--older-than", "0s"], set()),
        (["--larger-than", "1KB"], {"a/1", "b/1"}),
        (["--larger-than", "1"], set()),
        (["--keep", "0", "--prefix", "a/"], {"b/1"}),
        (["--older-than", "1h", "--larger-than", "1MB", "--keep", "1"], {"b/1"}),
    ],
)
def test_prune_by_each_limit(args, left):
    run("a/1", "b/1")
    assert invoke("sessions", "prune", *args).exit_code == 0
    assert ids() == left


def test_prune_as_json():
    run("a")
    [line] = invoke("sessions", "prune", "--keep", "0", "--json").stdout.splitlines()
    told = json.loads(line)
    assert (told["id"], told["why"], told["messages"], set(told)) == (
        "a",
        "count",
        3,
        {"id", "why", "messages", "modified_at"},
    )


def test_prune_leaves_what_waits_unless_it_is_told_to():
    async def main():
        async with SqliteStore("streamagent.db") as store:
            await store.enqueue("a", Message.user("wait"))

    anyio.run(main)
    assert invoke("sessions", "prune", "--keep", "0").stderr == "deleted 0 sessions\n"
    assert invoke("sessions", "prune", "--keep", "0", "--busy").stderr == "deleted 1 session\n"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ([], "without a limit nothing goes; give --older-than, --larger-than or --keep"),
        (["--prefix", "a"], "without a limit nothing goes"),
        (["--older-than", "soon"], "--older-than is a time such as 90m, 12h, 30d or 2w, not 'soon'"),
        (["--larger-than", "-1"], "--larger-than is a size such as 500KB, 2GB or 64MiB, not '-1'"),
        (["--keep", "-1"], "max_sessions is a whole number from 0, not -1"),
    ],
)
def test_a_limit_that_makes_no_sense_is_an_error(args, text):
    run("a")
    result = invoke("sessions", "prune", *args)
    assert (result.exit_code, result.stdout, ids()) == (2, "", {"a"})
    assert text in result.stderr


def test_erase_deletes_all_of_a_user_and_no_byte_is_left():
    run("bo/1", "bo/2", "al/1")
    invoke("sessions", "fork", "bo/1", "--new", "fork")
    dry = invoke("sessions", "erase", "--user", "bo", "--dry-run")
    assert (dry.exit_code, dry.stderr, len(ids())) == (0, "would delete 3 sessions\n", 4)
    result = invoke("sessions", "erase", "--user", "bo")
    assert (result.exit_code, result.stdout, result.stderr) == (0, dry.stdout, "deleted 3 sessions\n")
    assert {tuple(line.split()[:2]) for line in result.stdout.splitlines()[1:]} == {
        ("fork", "fork"),
        ("bo/1", "user"),
        ("bo/2", "user"),
    }
    assert ids() == {"al/1"}
    stored = b"".join(file.read_bytes() for file in Path().iterdir())
    assert b"canary of al" in stored
    assert b"canary of bo" not in stored


def test_a_session_that_is_deleted_leaves_no_byte():
    run("a", "b")
    assert invoke("sessions", "delete", "a").exit_code == 0
    stored = b"".join(file.read_bytes() for file in Path().iterdir())
    assert (b"canary of a" in stored, b"canary of b" in stored) == (False, True)


@pytest.mark.parametrize("args", [[], ["--user", ""]])
def test_erase_wants_a_user(args):
    run("a")
    assert (invoke("sessions", "erase", *args).exit_code, ids()) == (2, {"a"})


def test_nothing_is_erased_of_an_unknown_user():
    run("a")
    result = invoke("sessions", "erase", "--user", "nobody")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "deleted 0 sessions\n")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("90m", 5400), ("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600), ("1.5 H", 5400), ("0d", 0)],
)
def test_times(text, seconds):
    assert to_seconds("--x", text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("7", 7), ("7B", 7), ("5KB", 5000), ("2mb", 2_000_000), ("1GB", 10**9), ("1KiB", 1024), ("1.5 MiB", 1_572_864)],
)
def test_sizes(text, size):
    assert to_bytes("--x", text) == size


@pytest.mark.parametrize("text", ["", "d", "30", "-1d", "1e3d", "1d2h", "٣d", "9" * 13 + "d", "1y"])
def test_no_times(text):
    with pytest.raises(ConfigError, match="--x is a time"):
        to_seconds("--x", text)
