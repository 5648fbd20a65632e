"""`streamagent worker`: what it takes, what it says, and how signals end it."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from streamagent import Message, SqliteStore

from .programs import command, environment, invoke, rows

# Agents whose tool waits for a file, or ends its process.
SHOP = """
import os, threading, time
from pathlib import Path
from streamagent import Agent, Message, tool

@tool
async def pack() -> str:
    '''Pack something.'''
    import anyio
    with Path("effects.txt").open("a") as effects:
        effects.write("pack\\n")
    while not Path("go").exists():
        await anyio.sleep(0.01)
    return "packed"

@tool(retry_safe=True)
def explode() -> str:
    '''End the process.'''
    with Path("effects.txt").open("a") as effects:
        effects.write("explode\\n")
    os._exit(7)

@tool
def block() -> str:
    '''Hang in a thread.'''
    Path("effects.txt").write_text("block")
    threading.Event().wait()

@tool
async def linger() -> str:
    '''Hang in a shield.'''
    import anyio
    Path("effects.txt").write_text("linger")
    with anyio.CancelScope(shield=True):
        await anyio.sleep_forever()

class Clerk:
    name = "clerk"

    async def stream(self, context, **options):
        *_, last = [message async for message in context]
        if last.role == "user" and last.content in ("pack", "explode", "block", "linger"):
            yield Message(type="tool_call", content="{}", query={"tool": last.content, "id": "c1", "args": {}})
            yield Message.stop("tool_calls")
        else:
            yield Message(content=f"It is {last.content}.")
            yield Message.stop("stop")

agent = Agent(Clerk(), tools=[pack, explode, block, linger])
agents = {"mine": agent}

def choose(session):
    return agent if session.startswith("mi") else None

async def wrong(session):
    return "an agent"
"""
LOG, EFFECTS = Path("log"), Path("effects.txt")
QUICK = ["--sweep", "0.05", "--lease", "1", "--db", "s.db"]


@pytest.fixture(autouse=True)
def shop(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    yield
    while BEGUN:
        popen = BEGUN.pop()
        popen.kill()
        popen.wait(30)
        popen.stdout.close()


BEGUN = []


def submit(*prompts):
    async def enqueue():
        async with SqliteStore("s.db") as store:
            for session, prompt in prompts:
                await store.enqueue(session, Message.user(prompt))

    anyio.run(enqueue)


class Process:
    """A worker as a process; its standard error goes to a file, which nobody has to read meanwhile."""

    def __init__(self, *options, target="shop.py"):
        with LOG.open("ab") as log:
            self.popen = subprocess.Popen(
                command("worker", target, *QUICK, *options),
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
            )
        BEGUN.append(self.popen)
        self.line = self.popen.stdout.readline()

    def end(self, number=signal.SIGTERM):
        self.popen.send_signal(number)
        return self.wait()

    def wait(self):
        code = self.popen.wait(30)
        assert self.popen.stdout.read() == ""
        self.popen.stdout.close()
        return code


def until(true):
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, LOG.read_text()
        time.sleep(0.02)


def said(session):
    try:
        return [row.get("content", "") for row in rows(session, "s.db") if row["type"] in ("text", "tool_result")]
    except AssertionError:  # it has no rows yet
        return []


def effects():
    return EFFECTS.read_text().split() if EFFECTS.exists() else []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_answers_what_waits_and_ends_with_0(number):
    submit(("a", "hello"), ("b", "bye"))
    worker = Process()
    assert worker.line.startswith("worker ")
    assert worker.line.endswith("SqliteStore('s.db', tenant='default'), 32 sessions at once\n")
    until(lambda: said("a") == ["hello", "It is hello."] and said("b") == ["bye", "It is bye."])
    submit(("a", "more"))
    until(lambda: said("a")[2:] == ["more", "It is more."])
    assert worker.end(number) == 0
    lines = [json.loads(line) for line in LOG.read_text().splitlines()]
    answered = [line for line in lines if line["event"] == "answered what waited"]
    assert {line["session"] for line in answered} == {"a", "b"}
    assert {line["level"] for line in lines} == {"info"}
    # A prompt is seen to be answered before its worker says so: the signal may come in between.
    others = [line["event"] for line in lines if line not in answered]
    assert others == ["ending: no run is begun any more"]


def test_a_run_goes_on_in_the_next_worker_at_once():
    submit(("s", "pack"))
    first = Process("--lease", "1000", "--grace", "0.01")
    until(effects)
    first.popen.send_signal(signal.SIGTERM)
    until(lambda: "leaving" in LOG.read_text())
    Path("go").touch()
    assert first.wait() == 0
    assert said("s") == ["pack", "packed"]
    second = Process()
    until(lambda: said("s") == ["pack", "packed", "It is packed."])
    assert second.end() == 0
    assert effects() == ["pack"]


@pytest.mark.parametrize("tool", ["block", "linger"])
def test_it_ends_although_a_tool_hangs(tool):
    submit(("s", tool))
    worker = Process("--grace", "0.01")
    until(effects)
    assert worker.end() == 0
    *_, last = [json.loads(line) for line in LOG.read_text().splitlines()]
    assert (last["level"], last["event"]) == ("warning", "a tool hangs; the process ends without it")
    with closing(sqlite3.connect("s.db")) as db:
        assert db.execute("SELECT owner FROM leases").fetchall() == [("",)]  # others may go on with it


def test_the_exit_code_stays_when_a_thread_hangs():
    program = """
import threading, typer
from streamagent.cli.ending import Ending
with Ending():
    threading.Thread(target=threading.Event().wait).start()
    print("said", end="")
    raise typer.Exit(3)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout) == (3, "said")


def test_a_second_signal_ends_it_at_once_and_the_next_worker_says_what_it_knows():
    submit(("s", "pack"))
    first = Process("--grace", "1000")
    until(effects)
    first.popen.send_signal(signal.SIGTERM)
    until(lambda: "ending" in LOG.read_text())
    assert first.end() == -signal.SIGTERM
    second = Process()
    until(lambda: len(said("s")) == 3)
    assert second.end() == 0
    assert "outcome is unknown" in said("s")[1]
    assert effects() == ["pack"]


def test_what_ends_each_process_is_given_up_after_three_and_the_session_goes_on():
    submit(("s", "explode"))
    for _ in range(3):
        assert Process().wait() == 7
    worker = Process()
    until(lambda: any((row.get("query") or {}).get("reason") == "error" for row in rows("s", "s.db")))
    [error] = [row["query"]["error"]["kind"] for row in rows("s", "s.db") if (row.get("query") or {}).get("error")][-1:]
    assert (error, effects()) == ("poison", ["explode"] * 3)
    submit(("s", "hello"))
    until(lambda: said("s")[-1] == "It is hello.")
    assert worker.end() == 0


@pytest.mark.parametrize("target", ["shop.py:agents", "shop.py:choose"])
def test_a_target_may_choose_by_the_session(target):
    submit(("theirs", "hello"), ("mine", "hello"))
    worker = Process(target=target)
    until(lambda: len(said("mine")) == 2)
    assert worker.end() == 0
    with sqlite3.connect("s.db") as db:
        assert db.execute("SELECT count(*) FROM messages WHERE session = 'theirs' AND state = 'inbox'").fetchone() == (
            1,
        )
    db.close()


def test_a_target_that_chooses_no_agent_is_told():
    submit(("s", "hello"))
    worker = Process(target="shop.py:wrong")
    until(lambda: "gives 'an agent' for session 's', which is no Agent" in LOG.read_text())
    assert worker.end() == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["no target"], "'no target' is no target"),
        (["shop.py:nothing"], "has no agent 'nothing'"),
        (["shop.py", "--concurrency", "0"], "concurrency=…) is 1 or more, not 0"),
        (["shop.py", "--sweep", "0"], "sweep=…) takes seconds above 0"),
        (["shop.py", "--lease", "0"], "lease=…) takes seconds above 0"),
        (["shop.py", "--grace", "-1"], "--grace takes seconds above 0"),
        (["shop.py", "--nats", "http://me:secret@x"], "NatsBus takes a URL such as nats://host:4222"),
        (["shop.py", "--nats", "nats://"], "NatsBus takes a URL such as nats://host:4222"),
        (["shop.py", "--nats", "nats://me:secret@x:port"], "NatsBus takes a URL such as nats://host:4222"),
    ],
)
def test_what_it_cannot_use_is_told(arguments, told):
    done = invoke("worker", *arguments)
    assert done.exit_code == 2
    assert told in done.output
    assert "secret" not in done.output
