"""A harness around a model: what it should know is put into its context without a call, and limits hold it.

streamagent run pipelines/harness.py "Do you have a blue mug?" -m local
"""

import json
import re
import sys
from pathlib import Path

import anyio

from streamagent import Agent, Message, Pipeline, RunContext, budget, compact, inject, persist, redact

PROMPT = "Do you have a blue mug?"
CATALOG = Path(__file__).with_name("products.json")


async def retrieve(prompt: Message, _run: RunContext) -> str | None:
    """Find the products that the prompt names: any search will do, a database or an index of vectors."""
    words = set(re.findall(r"\w{3,}", prompt.content.lower()))
    products = json.loads(await anyio.Path(CATALOG).read_text())
    found = [product for product in products if words & set(re.findall(r"\w+", product["product"].lower()))]
    return f"From our catalog, just now: {json.dumps(found)}" if found else None


def agent(model: str = "mock") -> Agent:
    """Make the agent; `print(agent().pipeline)` shows its chain."""
    pipeline = Pipeline(
        context=[compact(tokens=8_000), inject(retrieve), redact()],
        reply=[budget(tokens=20_000), budget(seconds=120), persist()],
    )
    return Agent(model, pipeline=pipeline, system="You answer customers of our shop, in one sentence.")


async def main(*model: str) -> None:
    """Ask once, and print the answer as it comes."""
    async with agent(*model).session() as session:
        async for text in session.ask(PROMPT).text():
            print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:2])
