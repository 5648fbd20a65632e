"""This runtime, on its direct lane, talked to by `send` and `receive`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from benchmarks.contender import Contender
from benchmarks.workload import Workload
from streamagent.models.direct import DirectModel

from .runtime import open_runtime


def open_contender(workload: Workload) -> AbstractAsyncContextManager[Contender]:
    """Give what runs one session."""
    return open_runtime(workload, DirectModel, duplex=True)
