"""Thousands of streams through one process: `python -m tests.models.stream_soak --streams 5000 [--lane NAME]`.

One in ten is left by its reader, one in ten is cut by the provider. Memory is flat after the first fifth, and when all
is over there is no socket, task or thread left.
"""

import argparse
import asyncio
import gc
import json
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from streamagent import Agent, MemoryStore, Pipeline, Runtime, persist
from streamagent.testing import assert_no_leaks
from streamagent.testing.provider import finish, sse, text

from .lanes import KEY, LANES

AT_ONCE = 200
CHUNKS = 20
LEFT, CUT = 3, 7  # of ten streams, the one that its reader leaves, and the one that the provider cuts
PIECES = sse(*(text(f" word{number}") for number in range(CHUNKS)), finish("stop"))
WHOLE = "".join(f" word{number}" for number in range(CHUNKS))
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Found:
    """What came of the streams, and the resident memory after each tenth of them, in bytes."""

    whole: int = 0
    left: int = 0
    cut: int = 0
    memory: list[int] = field(default_factory=list)

    @property
    def growth(self):
        """How much the memory grew after the first fifth, at most."""
        return max(self.memory[2:]) - self.memory[1]


async def answer(reader, writer):
    """Serve one connection: a stream for each request, in two halves; a prompt that says so has the second cut off."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            writer.write(HEAD + framed(PIECES[: CHUNKS // 2]))
            await writer.drain()
            if b"cut me" in body:
                break
            writer.write(framed(PIECES[CHUNKS // 2 :]) + b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        return  # the reader has left
    finally:
        writer.close()


def framed(pieces):
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


@asynccontextmanager
async def serving():
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        await server.wait_closed()


def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def soak(streams, lane="direct"):
    """Run so many streams; return what came of them."""
    found, numbers = Found(), iter(range(streams))
    async with serving() as url, Runtime(store=MemoryStore()) as runtime:
        agent = Agent(LANES[lane]("openai/test", api_base=url, api_key=KEY), pipeline=Pipeline(reply=[persist()]))

        async def work(session_id):
            for number in numbers:
                await one(agent, runtime, session_id, number % 10, found)
                if number % (streams // 10) == 0:
                    found.memory.append(resident())

        async with anyio.create_task_group() as tasks:
            for worker in range(min(AT_ONCE, streams)):
                tasks.start_soon(work, f"session {worker}")
    return found


async def one(agent, runtime, session_id, kind, found):
    """Run one stream in a session, of which only the fence stays."""
    async with agent.session(session_id, runtime=runtime) as session:
        said = ""
        reply = session.ask("cut me" if kind == CUT else "Hi")
        async for message in reply:
            said += message.content if message.role == "assistant" else ""
            if kind == LEFT and said:
                break
        if kind == LEFT:
            await reply.aclose()
            found.left += 1
        elif kind == CUT:
            assert (reply.reason, reply.stop.query["error"]["kind"]) == ("error", "truncated"), reply.stop
            found.cut += WHOLE.startswith(said)
        else:
            assert (reply.reason, said) == ("stop", WHOLE), (reply.reason, said)
            found.whole += 1
    await runtime.store.delete(session_id)


async def main(streams, lane):
    await soak(min(streams, 20), lane)  # threads of pools, imports
    async with assert_no_leaks(grace=10):
        found = await soak(streams, lane)
    print(json.dumps({**vars(found), "growth": found.growth, "lane": lane}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=5_000)
    parser.add_argument("--lane", choices=LANES, default="direct")
    options = parser.parse_args()
    anyio.run(main, options.streams, options.lane)
