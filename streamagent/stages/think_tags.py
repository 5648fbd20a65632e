"""`think_tags`: reasoning that a model writes into its text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from streamagent._core.think import ThinkSplitter
from streamagent.message import Message, new_id
from streamagent.protocols import Stage, Stream


def think_tags(*, starts_in_think: bool = False) -> Stage:
    """Turn a leading `<think>…</think>` block of an assistant's text into a `reasoning` message of its own.

    Only a block that opens the text is reasoning; a tag later on is ordinary text. No part of a tag is ever passed on.

    Args:
        starts_in_think: The model's template has opened the block already: the text starts inside it.
    """

    async def stage(stream: Stream) -> Stream:
        open_texts: dict[str, _Text] = {}
        async for message in stream:
            if message.type != "text" or message.role != "assistant":
                yield message
                continue
            text = open_texts.pop(message.id, None) or _Text(starts_in_think=starts_in_think)
            if message.more:
                open_texts[message.id] = text
            for piece in text.feed(message):
                yield piece

    return stage


class _Text:
    """One text message on its way through the splitter."""

    def __init__(self, *, starts_in_think: bool) -> None:
        self._splitter = ThinkSplitter(starts_in_think=starts_in_think)
        self._reasoning: Message | None = None
        self._shown = False

    def feed(self, fragment: Message) -> Iterator[Message]:
        pieces = self._splitter.feed(fragment.content)
        if not fragment.more:
            pieces = [*pieces, *self._splitter.end()]
        for kind, content in pieces:
            if kind == "reasoning":
                yield self._think(fragment, content)
            else:
                yield from self._close_reasoning()
                self._shown = True
                yield replace(fragment, content=content, query=None, more=True)
        if not fragment.more:
            yield from self._close_reasoning()
            if self._shown or fragment.query is not None:
                yield replace(fragment, content="")

    def _think(self, fragment: Message, content: str) -> Message:
        first = self._reasoning or replace(fragment, id=new_id(), type="reasoning", query=None, more=True)
        self._reasoning = replace(first, content=content)
        return self._reasoning

    def _close_reasoning(self) -> Iterator[Message]:
        if self._reasoning is not None:
            yield replace(self._reasoning, content="", more=False)
            self._reasoning = None
