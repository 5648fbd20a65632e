"""This runtime, on its provider lane: LiteLLM's configuration of a provider, over our transport."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from benchmarks.contender import Contender
from benchmarks.workload import MODEL, Workload
from streamagent.models.provider import ProviderModel

from .runtime import open_runtime


def open_contender(workload: Workload) -> AbstractAsyncContextManager[Contender]:
    """Give what runs one session."""
    return open_runtime(workload, ProviderModel, name=f"hosted_vllm/{MODEL}")
