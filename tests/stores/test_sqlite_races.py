"""Two processes want one session, two hundred times; and a write-ahead log that lost its end."""

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from streamagent.message import Message
from streamagent.stores.sqlite import SqliteStore
from streamagent.testing.contract.rows import rows

pytestmark = pytest.mark.anyio

RACER = """
import json, sys
import anyio
from streamagent.errors import LeaseLost
from streamagent.message import Message
from streamagent.stores.sqlite import SqliteStore

async def race(path, name):
    held = []
    async with SqliteStore(path, synchronous="normal", busy_timeout=30) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(100):
            fence = await store.acquire("s")
            held.append(fence)
            for _ in range(2):
                try:
                    await store.write("s", [Message(content=name)], fence=fence)
                except LeaseLost:
                    break
    print(json.dumps(held), flush=True)

anyio.run(race, *sys.argv[1:])
"""


@pytest.fixture
def anyio_backend():
    return "asyncio", {"use_uvloop": True}


async def test_two_processes_race_for_one_session_and_every_row_is_its_holders(tmp_path):
    """I2, I7: no gap, and no row by whoever did not hold the session when it was given."""
    path = str(tmp_path / "s.db")
    async with SqliteStore(path):
        pass
    racers = {
        name: subprocess.Popen(
            [sys.executable, "-c", RACER, path, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    }
    for racer in racers.values():
        assert racer.stdout.readline() == "ready\n"
    for racer in racers.values():
        racer.stdin.write("go\n")
        racer.stdin.flush()
    held = {
        name: set(json.loads((await anyio.to_thread.run_sync(racer.communicate))[0])) for name, racer in racers.items()
    }
    assert [racer.returncode for racer in racers.values()] == [0, 0]
    assert sorted(held["one"] | held["two"]) == list(range(1, 201))
    with closing(sqlite3.connect(path)) as db:
        stored = db.execute("SELECT sequence, fence, content FROM messages ORDER BY sequence").fetchall()
    assert [sequence for sequence, _, _ in stored] == list(range(1, len(stored) + 1))
    assert [fence for _, fence, _ in stored] == sorted(fence for _, fence, _ in stored)
    assert all(fence in held[name] for _, fence, name in stored)


@pytest.mark.parametrize("kept", [0, 1, 32, 4128, 12_000])
async def test_a_log_that_lost_its_end_leaves_a_session_without_gaps(tmp_path, kept):
    """F28: whatever of the -wal file is there, what it holds are whole transactions, and the store goes on."""
    path = tmp_path / "s.db"
    async with SqliteStore(path) as store:
        fence = await store.acquire("s")
        for number in range(20):
            await store.write("s", [Message(content=str(number))], fence=fence)
        for suffix in ("", "-wal"):  # as a machine leaves them that stops here
            shutil.copy(f"{path}{suffix}", tmp_path / f"left.db{suffix}")
    log = Path(f"{tmp_path / 'left.db'}-wal")
    log.write_bytes(log.read_bytes()[:kept])
    async with SqliteStore(tmp_path / "left.db") as store:
        left = [row.content for row in await rows(store)]
        assert left == [str(number) for number in range(len(left))]
        await store.write("s", [Message(content="on")], fence=await store.acquire("s"))
        assert [row.sequence for row in await rows(store)] == list(range(1, len(left) + 2))
