"""A session of 100 MB goes out of a file, into it again, and away, and the process stays as small as it was."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import hashlib, json, sys
from dataclasses import replace
from pathlib import Path

import anyio
from streamagent import Message, Retention, SqliteStore, export_session, import_session, prune

MB = 1_000_000

def peak():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024

async def fill(store):
    fence = await store.acquire("s")
    large = Message(content="", more=True)
    for number in range(60):
        await store.write("s", [replace(large, content=f"{number:04}" * (MB // 4))], fence=fence)
    await store.write("s", [replace(large, more=False)], fence=fence)
    for number in range(30):
        rows = [Message(content=f"{number:03}{row:02}" * 2_000) for row in range(100)]
        await store.write("s", rows, fence=fence)
    await store.write("s", [Message(content="é" * 5 * MB)], fence=fence)

async def chunks(path):
    with open(path, "rb") as file:
        while chunk := file.read(65_536):
            yield chunk

async def export(store, session, path):
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        async for line in export_session(store, session):
            file.write(line)
            digest.update(line)
    return digest.hexdigest()

async def main():
    async with SqliteStore("large.db", synchronous="normal") as store:
        await fill(store)
        await import_session(store, chunks(sys.argv[1]), as_id="small")  # everything is loaded that is needed
        before = peak()
        one = await export(store, "s", "s.jsonl")
        await prune(store, Retention(max_bytes=99 * MB))
        left = [info.id async for info in store.sessions()]
        await import_session(store, chunks("s.jsonl"))
        two = await export(store, "s", "t.jsonl")
        size = (await store.info("s")).size
        print(json.dumps({"grown": peak() - before, "same": one == two, "size": size, "left": left}))

anyio.run(main)
"""


def test_100_mb_in_bounded_memory(tmp_path):
    small = tmp_path / "small.jsonl"
    filling = """
import anyio
from streamagent import Message, MemoryStore, export_session
async def main():
    store = MemoryStore()
    await store.enqueue("s", Message.user("hi"))
    async for line in export_session(store, "s"):
        print(line.decode(), end="")
anyio.run(main)
"""
    for program, args, output in ((filling, [], small), (PROGRAM, [str(small)], tmp_path / "told.json")):
        with output.open("w") as stdout:
            subprocess.run(
                [sys.executable, "-c", program, *args],
                cwd=tmp_path,
                env={"PYTHONPATH": str(ROOT)},
                stdout=stdout,
                check=True,
                timeout=100,
            )
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["same"], told["left"], told["size"]) == (True, ["small"], 100_000_000)
    assert told["grown"] < 32
