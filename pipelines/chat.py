"""A chat without the command line's help: read a line, stream the answer, and remember both in `chat.db`.

streamagent chat pipelines/chat.py -m openai/gpt-5-mini
"""

import sys

import anyio

from streamagent import Agent

PROMPT = "Who are you?"

agent = Agent("mock", system="You are a friendly assistant. Answer in a sentence or two.", store="chat.db")


async def main(*model: str) -> None:
    """Answer each line of standard input, in one session that the next start continues."""
    async with agent.with_options(model=model[0] if model else None).session("chat") as session:
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            async for text in session.ask(line.strip()).text():
                print(text, end="", flush=True)
            print()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:2])
