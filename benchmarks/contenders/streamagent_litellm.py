"""This runtime, over LiteLLM's `acompletion`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from benchmarks.contender import Contender
from benchmarks.workload import Workload
from streamagent.models.litellm import LiteLLMModel

from .runtime import open_runtime


def open_contender(workload: Workload) -> AbstractAsyncContextManager[Contender]:
    """Give what runs one session."""
    return open_runtime(workload, LiteLLMModel)
