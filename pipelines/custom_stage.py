"""Stages of one's own: an async generator function is a stage, and a function that returns one is a stage with options.

streamagent run pipelines/custom_stage.py "Say something loud." -m local
"""

import sys
from dataclasses import replace

import anyio

from streamagent import Agent, Message, Pipeline, Stage, Stream, persist, rate_limit, strip_reasoning

PROMPT = "Say something loud."


async def shout(stream: Stream) -> Stream:
    """Turn the answer into capitals; it stands before `persist`, so they are stored, too."""
    async for message in stream:
        spoken = message.type == "text" and message.role == "assistant"
        yield replace(message, content=message.content.upper()) if spoken else message


def count_words(unit: str = "words") -> Stage:
    """Say after each turn how much was said; the count is a local variable that lives for one run."""

    async def stage(stream: Stream) -> Stream:
        words = 0
        async for message in stream:
            if message.type == "text" and message.role == "assistant":
                words += message.content.count(" ") + (not message.more)
            if message.type == "stop":
                yield Message(type="progress", content=f"{words} {unit}")
            yield message

    return stage


def agent(model: str = "mock") -> Agent:
    """Make the agent; `print(agent().pipeline)` shows its chain."""
    stages = [rate_limit(messages=10), shout, count_words(), persist(), strip_reasoning()]
    return Agent(model, pipeline=Pipeline(reply=stages))


async def main(*model: str) -> None:
    """Ask once, and print what comes out of the pipeline, and the pipeline."""
    chosen = agent(*model)
    async with chosen.session() as session:
        for message in await session.ask(PROMPT):
            print(f"{message.role:10} {message.type:10} {message.content}")
    print(chosen.pipeline)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:2])
