"""`Plan`: what a run needs to know of its agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .calls import ToolSpec
from .hooks import NO_HOOKS, Drain, Hooks
from .pipeline import Pipeline
from .protocols import DEFAULT_SETTINGS, Model, ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run needs to know of its agent.

    Args:
        model: What answers.
        pipeline: The stages around it.
        tools: What the model is told that it may call.
        system: The system prompt; it is sent in front of the stored messages and not stored.
        settings: Options of the model calls.
        max_turns: How many model turns one prompt may take.
        timeout: How long a run may take, in seconds; `None` for no limit.
        hooks: What the loop asks the program.
        steering: How many steering messages are admitted at one border.
        follow_ups: How many follow-ups are admitted when nothing else is left.
        max_depth: How deep sub-agents may be nested in a run that is not a sub-agent's itself.
        max_children: How many sub-agents may be at work at once in such a run, at all depths together.
    """

    model: Model
    pipeline: Pipeline
    tools: Sequence[ToolSpec] = ()
    system: str | None = None
    settings: ModelSettings = DEFAULT_SETTINGS
    max_turns: int = 50
    timeout: float | None = None
    hooks: Hooks = NO_HOOKS
    steering: Drain = "one_at_a_time"
    follow_ups: Drain = "one_at_a_time"
    max_depth: int = 3
    max_children: int = 8
