"""A process that races for a session: `python -m tests.fleet.racer URL SCHEMA NAME ROUNDS`."""

import sys

import anyio

from streamagent.errors import SessionBusy
from streamagent.message import Message
from streamagent.records import Owner
from streamagent.stores.postgres import PostgresStore


async def acquired(store, owner):
    while True:
        try:
            return await store.acquire("s", owner=owner)
        except SessionBusy:
            await anyio.sleep(0)


async def main(url, schema, name, rounds):
    owner = Owner(id=name, ttl=30.0)
    async with PostgresStore(url, schema=schema) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(int(rounds)):
            fence = await acquired(store, owner)
            for half in ("begun", "done"):
                await store.write("s", [Message.user(f"{name} {number} {half}")], fence=fence)
            await store.release("s", fence=fence)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
