"""Models for a simulation: one improvises by a seed, one cuts another's answers anew, one checks what it is given."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from random import Random

from streamagent.calls import ToolSpec
from streamagent.message import Message, each, new_id
from streamagent.models.example import example_arguments
from streamagent.protocols import DEFAULT_SETTINGS, Model, ModelSettings, Stream
from streamagent.testing.checking import provider_requests
from streamagent.testing.lint import RULES, SIGNED, lint

NAMES = tuple(RULES)  # of models, whose data must not be sent to one another
BATCHES = 3  # of calls in a row; then a plain answer comes, so that runs end
PIECES = ("", "a", "seeded ", "answer ", "of several ", "words, ", "fünf ", "🦜 ")


class SeededModel:
    """Improvises: text in pieces, reasoning, calls of the tools that it has and of one that nobody has, failures.

    Args:
        dice: What decides.
    """

    name = "seeded"

    def __init__(self, dice: Random) -> None:
        self._dice = dice

    async def stream(
        self,
        context: AsyncIterable[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        settings: ModelSettings = DEFAULT_SETTINGS,  # noqa: ARG002 - the protocol's
        deadline: float = math.inf,  # noqa: ARG002
    ) -> Stream:
        """Improvise a turn; see `streamagent.protocols.Model`."""
        for message in self.turn([message async for message in context], tools):
            yield message

    def turn(self, given: Sequence[Message], tools: Sequence[ToolSpec]) -> Iterator[Message]:
        """Improvise what is said at once."""
        dice, name = self._dice, self._dice.choice(NAMES)
        if dice.random() < 0.3:  # noqa: PLR2004
            signature = {"thinking_blocks": [SIGNED + name.rpartition("/")[2]]}
            yield Message(type="reasoning", content="hm", query={"provider": signature})
        yield from self._text()
        calls = [*self._calls(given, tools)]
        yield from calls
        reason = dice.choices(["well", "length", "error", "silent"], [16, 1, 1, 1])[0]
        if reason == "error":
            yield Message.stop("error", error={"kind": "provider_error", "message": "no", "retryable": False})
        elif reason != "silent":
            well = "tool_calls" if calls else "stop"
            usage = {"total_tokens": dice.randrange(100)} if dice.random() < 0.5 else None  # noqa: PLR2004
            told = {"model": name} | ({"usage": usage} if usage else {})
            yield Message.stop("length" if reason == "length" else well, **told)

    def _text(self) -> Iterator[Message]:
        id_, pieces = new_id(), self._dice.choices(PIECES, k=self._dice.randrange(5))
        for number, piece in enumerate(pieces, 1):
            yield Message(id=id_, content=piece, more=number < len(pieces))

    def _calls(self, given: Sequence[Message], tools: Sequence[ToolSpec]) -> Iterator[Message]:
        prompts = [number for number, message in enumerate(given) if message.role == "user"]
        since = given[prompts[-1] :] if prompts else given
        if sum(message.type == "stop" for message in since) >= BATCHES:
            return
        prompt = given[prompts[-1]].content if prompts else ""
        for number in range(self._dice.choice((0, 0, 1, 1, 2, 3)) if tools else 0):
            tool = self._dice.choice(tools)
            name = tool.name if self._dice.random() < 0.95 else "unknown"  # noqa: PLR2004
            opened = Message(type="tool_call", content="{", more=True)
            yield opened
            query = {"tool": name, "id": f"c{number}", "args": example_arguments(tool.parameters, prompt) or {}}
            yield replace(opened, content="}", more=False, query=query)


class LintedModel:
    """Another model; it asserts that no provider would refuse what that is given (I4).

    Args:
        model: The other one.
        is_lost: Tells whether another process has taken the session: what is asked then is answered to nobody, and its
            context may end in what the other one has stored meanwhile.
    """

    def __init__(self, model: Model, is_lost: Callable[[], bool]) -> None:
        self.name = model.name
        self._model = model
        self._is_lost = is_lost

    async def stream(
        self,
        context: AsyncIterable[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        settings: ModelSettings = DEFAULT_SETTINGS,
        deadline: float = math.inf,
    ) -> Stream:
        """Pass the other one's answer on; see `streamagent.protocols.Model`."""
        given = [message async for message in context]
        problems = [text for request in provider_requests(given).items() for text in lint(*request)]
        if problems and not self._is_lost():
            raise AssertionError("I4: " + "; ".join(problems))
        async with aclosing(
            self._model.stream(each(given), tools=tools, settings=settings, deadline=deadline)
        ) as answer:
            async for message in answer:
                yield message


class RechunkedModel:
    """Another model, whose text comes in pieces as a seed cuts it.

    Args:
        model: The other one.
        dice: What decides.
    """

    def __init__(self, model: Model, dice: Random) -> None:
        self.name = model.name
        self._model = model
        self._dice = dice

    async def stream(
        self,
        context: AsyncIterable[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        settings: ModelSettings = DEFAULT_SETTINGS,
        deadline: float = math.inf,
    ) -> Stream:
        """Pass the other one's answer on; see `streamagent.protocols.Model`."""
        answer = self._model.stream(context, tools=tools, settings=settings, deadline=deadline)
        try:
            async for message in answer:
                for piece in self._pieces(message):
                    yield piece
        finally:
            await answer.aclose()

    def _pieces(self, message: Message) -> Iterator[Message]:
        cut = self._dice.randrange(len(message.content) + 1) if message.type in ("text", "reasoning") else 0
        if cut:
            yield replace(message, content=message.content[:cut], query=None, more=True)
        yield replace(message, content=message.content[cut:]) if cut else message
