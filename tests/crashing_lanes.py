"""A process that answers over HTTP until it is killed: `python -m tests.crashing_lanes DB LANE SCENE=URL…`.

Each scene is a session of its own. It prints what has been shown of each message so far.
"""

import sys

import anyio

from streamagent import Agent, Pipeline, Runtime, SqliteStore, persist, tool, tool_dispatch
from tests.models.lanes import KEY, LANES, NAMES


@tool
async def ship(place: str) -> str:
    """Ship something, for ever."""
    print(f"tool running {place}", flush=True)
    await anyio.sleep_forever()


async def live(runtime, lane, scene, url):
    model = LANES[lane](NAMES[lane], api_base=url, api_key=KEY)
    agent = Agent(model, tools=[ship], pipeline=Pipeline(reply=[tool_dispatch([ship]), persist(lag_ms=0)]))
    shown = {}
    async with agent.session(scene, runtime=runtime) as session:
        async for message in session.ask("Go."):
            shown[message.id] = shown.get(message.id, "") + message.content
            print(scene, message.type, shown[message.id], flush=True)


async def main(path, lane, *scenes):
    async with Runtime(store=SqliteStore(path)) as runtime, anyio.create_task_group() as tasks:
        for scene in scenes:
            tasks.start_soon(live, runtime, lane, *scene.split("=", 1))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
