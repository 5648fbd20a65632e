"""A shop assistant that lets two sub-agents work: each has a session of its own, and both are seen while they work.

streamagent run pipelines/subagents.py "Write a line about the blue mug." -m local
"""

import sys
from pathlib import Path

import anyio

from streamagent import Agent, Pipeline, budget, persist, read_tool, tool_dispatch

PROMPT = "Write one advertising sentence about the blue mug."


def agent(model: str = "mock") -> Agent:
    """Make the agent; its budget holds for all three."""
    researcher = Agent(
        model,
        tools=[read_tool(Path(__file__).parent)],
        system="You look facts up in the file products.json; read it before you answer.",
        name="researcher",
        description="Knows all products, their prices and the stock.",
    )
    writer = Agent(
        model,
        system="You write one advertising sentence, from the facts that you are given.",
        name="writer",
        description="Writes advertising; it wants the facts.",
    )
    tools = [researcher.as_tool(timeout=120), writer.as_tool(timeout=120)]
    return Agent(
        model,
        tools=tools,
        system="Ask the researcher for facts, then let the writer write, then say what he wrote.",
        pipeline=Pipeline(reply=[budget(tokens=20_000, tool_calls=10), tool_dispatch(tools), persist()]),
    )


async def main(*model: str) -> None:
    """Ask once; show who says what."""
    async with agent(*model).session() as session:
        for message in await session.ask(PROMPT):
            who = "  " * len(message.path) + message.role
            what = message.content or (message.query or {}).get("tool") or (message.query or {}).get("reason")
            print(f"{who:14} {message.type:12} {what!s:.80}")


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:2])
