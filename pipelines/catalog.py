"""An agent that answers from a file: it reads `products.json`, beside this program, with the tool `read`.

streamagent run pipelines/catalog.py "What products do you have in stock?" -m local
"""

import sys
from pathlib import Path

import anyio

from streamagent import Agent, read_tool

PROMPT = "What products do you have in stock?"


def agent(model: str = "mock") -> Agent:
    """Make the agent."""
    return Agent(
        model,
        tools=[read_tool(Path(__file__).parent)],
        system="You answer questions about our shop. The catalog is the file products.json; read it before you answer.",
    )


async def main(*model: str) -> None:
    """Ask once, and print the answer as it comes."""
    async with agent(*model).session() as session:
        async for text in session.ask(PROMPT).text():
            print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:2])
