"""A model of one's own: anything with a `name` and a `stream` that ends in a `stop`. This one repeats the prompt.

streamagent run pipelines/echo.py "Is anybody there?"
"""

from collections.abc import AsyncIterable, Sequence

import anyio

from streamagent import Agent, Message, ModelSettings, Stream, ToolSpec, split

PROMPT = "Is anybody there?"
PIECE = 4  # characters of a fragment: short, so that the streaming can be seen


class Echo:
    """Answers with what was said last, a few characters at a time."""

    name = "echo"

    async def stream(
        self,
        context: AsyncIterable[Message],
        *,
        tools: Sequence[ToolSpec] = (),  # noqa: ARG002 - an echo has no use for tools, settings or a deadline
        settings: ModelSettings = ModelSettings(),  # noqa: ARG002, B008
        deadline: float = float("inf"),  # noqa: ARG002
    ) -> Stream:
        """Answer `context`."""
        said = ""
        async for message in context:
            said = message.content if message.role == "user" else said
        for fragment in split(Message(content=said), PIECE):
            yield fragment
        yield Message.stop("stop", model=self.name)


agent = Agent(Echo())


async def main() -> None:
    """Ask once, and print the answer as it comes."""
    async with agent.session() as session:
        async for text in session.ask(PROMPT).text():
            print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    anyio.run(main)
