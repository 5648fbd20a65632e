"""What all contenders of a benchmark are given to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import orjson

Role = Literal["user", "assistant"]

MODEL = "gpt-4.1-mini"
PROMPT = "How many blue mugs are left?"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "stock",
        "description": "Units of a product in stock.",
        "parameters": {"type": "object", "properties": {"product": {"type": "string"}}, "required": ["product"]},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Sessions that all run at once: prompt, `chunks` of text and a tool call, the tool, `chunks` of text.

    Args:
        sessions: How many.
        chunks: Chunks of text in each of a session's two turns.
        pace_ms: Milliseconds between two chunks; 0 sends a whole response in one write.
        at_once: Sessions that run at the same time; 0 for all.
        history: Messages that are stored before the session's prompt.
        message_bytes: Length of each of these, and of what `persist` stores.
        megabytes: What a tool yields.
        url: Where the provider listens.
        folder: Where the contender keeps its sessions.
    """

    sessions: int
    chunks: int
    pace_ms: float = 0.0
    at_once: int = 0
    history: int = 0
    message_bytes: int = 1000
    megabytes: int = 0
    url: str = ""
    folder: str = ""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        return cls(**orjson.loads(text))

    def to_json(self) -> str:
        """Write it as an argument of a child process."""
        return orjson.dumps(asdict(self)).decode()

    @property
    def words(self) -> list[str]:
        """The text of one turn, chunk by chunk; no two are equal, as LiteLLM gives up on 100 equal ones."""
        return [f" word{number}" for number in range(self.chunks)]

    def past(self) -> Iterator[tuple[Role, str]]:
        """Yield role and content of the messages before the prompt."""
        for number in range(self.history):
            told = f"{number} "
            yield "assistant" if number % 2 else "user", told + "x" * (self.message_bytes - len(told))


class Stock:
    """Counts how often the tool ran: a session in which it did not is no session."""

    calls = 0


async def stock(product: str) -> int:
    """Units of a product in stock."""
    Stock.calls += 1
    return len(product)
