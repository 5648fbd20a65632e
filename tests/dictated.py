"""A process that says what it is told: `python -m tests.dictated DB`, a word a line, to the end of its input."""

import sys

import anyio
from anyio.to_thread import run_sync

from streamagent import Agent
from tests.scripted import answer


class Dictated:
    """A model whose answer comes from standard input."""

    name = "dictated"

    async def stream(self, context, **options):
        async for _ in context:
            pass
        *opened, closing, stop = answer("")
        while line := await run_sync(sys.stdin.readline):
            for message in opened:
                yield type(message)(id=message.id, content=line.rstrip("\n"), more=True)
        yield closing
        yield stop


async def main(path):
    async with Agent(Dictated(), store=path).session("s") as session:
        await session.ask("Say it.")


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
