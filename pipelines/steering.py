"""Say something while the agent is talking: `interrupt` cuts the answer at once, a follow-up waits for its end.

streamagent run pipelines/steering.py "Tell me everything about mugs." -m local
"""

import sys
from collections.abc import AsyncIterator

import anyio

from streamagent import Agent, Message, Session

PROMPT = "Tell me everything about mugs."


def agent(model: str = "mock") -> Agent:
    """Make the agent; with `steer_at`, steering would also skip tool calls that have not begun."""
    return Agent(model, system="You know all about mugs.", steer_at="after_tool")


async def impatient(session: Session) -> AsyncIterator[Message]:
    """Ask; interrupt the answer at its first words, and have one more question for the end."""
    await session.follow_up("And in French?")
    interrupted = False
    async for message in session.ask(PROMPT):
        yield message
        if message.role == "assistant" and message.content and not interrupted:
            interrupted = True
            await session.steer("Stop! In one sentence, please.", interrupt=True)


async def main(*model: str) -> None:
    """Print the conversation as it comes."""
    async with agent(*model).session() as session:
        async for message in impatient(session):
            if message.role == "user":
                print(f"> {message.content}")
            elif message.type == "text":
                print(message.content, end="", flush=True)
            elif message.type == "stop":
                print(" [cut]" if message.query and message.query.get("cut") else "")


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:2])
