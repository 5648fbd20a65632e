"""A shop assistant that asks a sub-agent: it has a session of its own, and is seen while it works.

streamagent run pipelines/subagents.py "What products do you have in stock?" -m local
"""

import sys
from pathlib import Path

import anyio

from streamagent import Agent, Pipeline, budget, persist, read_tool, tool_dispatch

PROMPT = "What products do you have in stock?"


def agent(model: str = "mock") -> Agent:
    """Make the agent; its budget holds for both."""
    clerk = Agent(
        model,
        tools=[read_tool(Path(__file__).parent)],
        system="You answer questions about our shop. The catalog is the file products.json; read it before you answer.",
        name="clerk",
        description="Answers questions about products, prices and the stock.",
    )
    tools = [clerk.as_tool(timeout=300)]
    return Agent(
        model,
        tools=tools,
        system="You are the assistant of a shop. Ask the clerk before you answer.",
        pipeline=Pipeline(reply=[budget(tokens=20_000, tool_calls=10), tool_dispatch(tools), persist()]),
    )


async def main(*model: str) -> None:
    """Ask once; show who says what, the sub-agent's words further in."""
    async with agent(*model).session() as session:
        for message in await session.ask(PROMPT):
            who = "  " * len(message.path) + message.role
            what = message.content or (message.query or {}).get("tool") or (message.query or {}).get("reason")
            print(f"{who:14} {message.type:12} {' '.join(str(what).split()):.80}")


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:2])
