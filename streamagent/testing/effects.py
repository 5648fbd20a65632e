"""`EffectLog`: what tools did, written down by the tools themselves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

from streamagent.calls import Tool, ToolContext

from .evidence import Effect
from .watched import ToolProxy


class EffectLog:
    """Writes down each execution of the tools that it was put around.

    Args:
        living: Tells whether the process lives that a tool runs in; what happens after its death is not written down.

    Attributes:
        effects: What was done, in order.
        streamed: Names of the tools that streamed.
    """

    def __init__(self, living: Callable[[], bool] = lambda: True) -> None:
        self.effects: list[Effect] = []
        self.streamed: set[str] = set()
        self.living = living

    def recorded(self, tool: Tool, living: Callable[[], bool] | None = None) -> Tool:
        """Put the log around a tool.

        Args:
            tool: The tool.
            living: As in the class, for this one.
        """
        return _RecordedTool(tool, self, living or self.living)

    def of(self, session: str) -> list[Effect]:
        """Return what was done for one session."""
        return [effect for effect in self.effects if effect.session == session]


class _RecordedTool(ToolProxy):
    def __init__(self, tool: Tool, log: EffectLog, living: Callable[[], bool]) -> None:
        super().__init__(tool)
        self._log = log
        self._living = living

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        session, _, call = context.idempotency_key.rpartition(":")
        effect = Effect(call=call, tool=self.spec.name, args=dict(arguments), session=session)
        if self._living():
            self._log.effects.append(effect)
        outcome = "cancelled"
        try:
            value = await self.tool.run(arguments, context)
            if isinstance(value, AsyncIterator):
                self._log.streamed.add(self.spec.name)
                outcome = "running"
                return self._pieces(value, effect)
            outcome = "returned"
        except Exception:
            outcome = "raised"
            raise
        finally:
            self._note(effect, outcome)
        return value

    async def _pieces(self, pieces: AsyncIterator[Any], effect: Effect) -> AsyncGenerator[Any, None]:
        outcome = "cancelled"
        try:
            async for piece in pieces:
                yield piece
            outcome = "returned"
        except Exception:
            outcome = "raised"
            raise
        finally:
            self._note(effect, outcome)
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()

    def _note(self, effect: Effect, outcome: str) -> None:
        if self._living():
            effect.outcome = outcome
