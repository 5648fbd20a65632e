"""A process that answers until it is killed: `python -m tests.crashing DB SCENE`. It prints what it has shown."""

import sys

import anyio

from streamagent import Agent, Pipeline, persist, tool, tool_dispatch
from tests.scripted import ScriptedModel, call, calls, text


@tool
async def ship() -> str:
    """Ship something, for ever."""
    print("running", flush=True)
    await anyio.sleep_forever()


researcher = Agent(
    ScriptedModel(text("half ", "an ", "answer ")[:3]),
    name="researcher",
    description="Finds out.",
    pipeline=Pipeline(reply=[persist(lag_ms=0)]),
)
SCENES = {
    "child": [calls(call("researcher", prompt="How deep?"))],
    "text": [text("half ", "an ", "answer ")[:3]],
    "arguments": [[call("ship", "c1"), *text("so ")[:1]]],
    "tool": [calls(call("ship", "c1"), call("ship", "c2"))],
}


async def main(path, scene):
    model = ScriptedModel(*SCENES[scene])
    agent = Agent(
        model, pipeline=Pipeline(reply=[tool_dispatch([ship, researcher.as_tool()]), persist(lag_ms=0)]), store=path
    )
    async with agent.session("s") as session:
        async for message in session.ask("Go."):
            print(message.type, message.content, flush=True)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
