"""An agent that asks before it acts: a refund waits until somebody approves it, here on the terminal.

streamagent run pipelines/approval.py "Refund 250 euros for order A17." --session alice -m local
streamagent approve alice --all      # from any process; then: run … --session alice --resume
"""

import sys

import anyio

from streamagent import Agent, Session, tool

PROMPT = "Refund 250 euros for order A17, please."
SMALL = 100  # euros, which need no approval


@tool(requires_approval=lambda args: args["amount"] > SMALL)
def refund(order: str, amount: float) -> str:
    """Give a customer the money back.

    Args:
        order: The order's number, such as A17.
        amount: How much, in euros.
    """
    return f"{amount:g} euros were sent back for order {order}."


def agent(model: str = "mock") -> Agent:
    """Make the agent."""
    return Agent(model, tools=[refund], system="You are the clerk of a shop. Refund what a customer asks you to.")


async def decide(session: Session) -> None:
    """Ask about each call that waits: `yes` runs it, anything else is told to the model as the reason why not."""
    for call in await session.pending():
        print(f"\n{call.tool} {dict(call.args)}? ", end="", flush=True)
        said = (await anyio.to_thread.run_sync(sys.stdin.readline)).strip()
        await (session.approve(call) if said == "yes" else session.reject(call, said or "nobody answered"))


async def main(*model: str) -> None:
    """Ask, decide about what waits, and go on, until there is an answer."""
    async with agent(*model).session() as session:
        reply = session.ask(PROMPT)
        while (result := await reply).reason == "paused":
            await decide(session)
            reply = session.resume()
        print(result.text)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:2])
