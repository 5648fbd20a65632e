"""What all contenders of a benchmark are given to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

import orjson

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
        url: Where the provider listens.
    """

    sessions: int
    chunks: int
    pace_ms: float = 0.0
    url: str = ""

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


async def stock(product: str) -> int:
    """Units of a product in stock."""
    return len(product)
