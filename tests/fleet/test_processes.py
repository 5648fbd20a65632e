"""Processes that race, stand still and are killed, on one PostgreSQL."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from anyio import to_thread

from streamagent import Message
from streamagent.stores.postgres import PostgresStore
from streamagent.testing import check_session
from tests.cli.programs import ROOT, environment
from tests.fleet.waiting import at_rest, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
CLERK = Path(__file__).with_name("clerk.py")


@pytest.fixture(params=[("asyncio", {"debug": True})], ids=["asyncio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
async def store(postgres, schema):
    async with PostgresStore(postgres.url(), schema=schema) as store:
        yield store


@pytest.fixture
def begin(postgres, schema, tmp_path):
    """Begin workers; those that still run are killed at the end."""
    begun = []
    (tmp_path / "worker.py").write_text(WORKER)

    def begin(**told):
        env = environment(EFFECTS=str(tmp_path / "effects"), URL=postgres.url(), SCHEMA=schema, **told)
        with (tmp_path / "log").open("ab") as log:
            begun.append(
                subprocess.Popen([sys.executable, str(tmp_path / "worker.py")], env=env, stdout=log, stderr=log)
            )
        return begun[-1]

    yield begin
    for worker in begun:
        if worker.poll() is None:
            worker.kill()
        worker.wait(20)


# The command, with a schema of the test's own.
WORKER = f"""
import os
from streamagent.cli import app
from streamagent.cli import target
from streamagent.stores.postgres import PostgresStore

target.open_store = lambda _: PostgresStore(os.environ["URL"], schema=os.environ["SCHEMA"])
app(["worker", {str(CLERK)!r} + ":choose", "--lease", "1", "--sweep", "0.1", "--concurrency", "1", "--db", "x"])
"""


def effects(tmp_path):
    path = tmp_path / "effects"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def end(worker):
    worker.send_signal(signal.SIGTERM)
    assert await to_thread.run_sync(worker.wait, 20) == 0


async def test_a_worker_that_is_killed_is_replaced_and_what_it_did_is_not_done_again(store, begin, tmp_path):
    await store.enqueue("s", Message.user("1 order"))
    first = begin(WORK="60")
    await until(lambda: len(effects(tmp_path)) == 2)
    first.kill()
    second = begin()
    await until(lambda: at_rest(store))
    await end(second)
    done = effects(tmp_path)
    assert sorted(line["tool"] for line in done) == ["look", "look", "ship"]
    assert [line["attempt"] for line in done if line["tool"] == "look"] == [1, 2]
    rows = await check_session(store, crashed=True)
    assert {m.query["tool"]: m.content for m in rows if m.type == "tool_result"}["look"] == "found"


async def test_a_worker_that_stood_still_writes_nothing_more_and_is_free_at_once(store, begin, tmp_path):
    await store.enqueue("s", Message.user("1 order"))
    stale = begin(WORK="60")
    await until(lambda: len(effects(tmp_path)) == 2)
    stale.send_signal(signal.SIGSTOP)
    other = begin()
    await until(lambda: at_rest(store))
    await end(other)
    before = [row async for row in store.read("s")]
    stale.send_signal(signal.SIGCONT)
    await store.enqueue("t", Message.user("0 orders"))  # one session at once: it has to have left the other one
    await until(lambda: at_rest(store, "t"))
    assert [row async for row in store.read("s")] == before
    await end(stale)
    assert [row async for row in store.read("s")] == before
    await check_session(store, crashed=True)


async def test_two_processes_race_for_a_session(store, postgres, schema):
    """T7: a hundred rounds each; no gap, and no row between two of the same holder."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.fleet.racer", postgres.url(), schema, name, "100"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in ("left", "right")
    ]
    for racer in racers:
        assert await to_thread.run_sync(racer.stdout.readline) == b"ready\n"
    for racer in racers:
        racer.stdin.write(b"\n")
        racer.stdin.flush()
    for racer in racers:
        assert await to_thread.run_sync(racer.wait, 100) == 0
        racer.stdin.close()
        racer.stdout.close()
    rows = [row async for row in store.read("s")]
    assert [row.sequence for row in rows] == [*range(1, 401)]
    said = [row.content.split() for row in rows]
    assert [begun[:2] for begun in said[::2]] == [done[:2] for done in said[1::2]]
    assert {half for *_, half in said[::2]} == {"begun"}
    for name in ("left", "right"):
        assert [int(number) for of, number, half in said if of == name and half == "done"] == [*range(100)]
