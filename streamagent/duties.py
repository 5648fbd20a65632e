"""What a stage is there for, so that a pipeline can check its place."""

from __future__ import annotations

from typing import Literal

from .protocols import Stage

Duty = Literal["dispatch", "persist", "run_ahead", "shrink"]


def mark(stage: Stage, duty: Duty) -> Stage:
    """Say what a stage is there for: it runs calls, stores, reads ahead, or makes a context fit that was too long."""
    vars(stage)["duty"] = duty
    return stage


def duty_of(stage: Stage) -> Duty | None:
    """Return what a stage was marked with."""
    return getattr(stage, "duty", None)
