"""What the child of test_kills runs."""

from importlib import import_module
from pathlib import Path

import anyio

from streamagent import Agent, Pipeline, Runtime, persist, tool, tool_dispatch
from streamagent.testing import ScriptedModel, answer, call, calls, watched

PROMPT = "Ship it."


@tool
async def ship(log: str) -> str:
    """Ship something, and write that down outside of the store.

    Args:
        log: Where.
    """
    with Path(log).open("a") as file:
        file.write("shipped\n")
    return "sent"


import_module("streamagent.stores._sqlite_writer")  # once, in the server, and not in each of its children
assert ship.prepare({"log": ""})  # nor what pydantic and jsonschema import for that


def agent(path, log):
    def turn(context):
        done = any(row.type == "tool_result" and not row.query.get("cut") for row in context)
        return answer("It ", "is sent.") if done else calls(call("ship", log=log))

    model = ScriptedModel(turn)
    pipeline = Pipeline(reply=[tool_dispatch([ship]), persist(lag_ms=0)])
    return Agent(model, tools=[ship], pipeline=pipeline, store=path)


async def scenario(points, path, log):
    given = watched(agent(path, log), points)
    async with Runtime(store=given.store) as runtime, given.session("s", runtime=runtime) as session:
        await session.ask(PROMPT, client_key="a1")


async def fails(points):
    raise ValueError("by itself")


async def hangs(points):
    await anyio.sleep_forever()
