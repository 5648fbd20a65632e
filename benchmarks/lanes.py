"""`litellm_lanes`: the ways to a provider, with whole sessions around ours, beside a bare `litellm.acompletion`."""

from __future__ import annotations

from .chunks import CPU
from .harness import interleave
from .report import Report, Setting, compare

_PEER = "litellm_loop"
_PROVIDER = "streamagent_provider"
_LANES = ("streamagent_direct", _PROVIDER, "streamagent_litellm")
_TARGET = 0.08  # of the CPU of a loop over `litellm.acompletion`


def measure_lanes(setting: Setting) -> Report:
    """Compare the CPU of the three lanes."""
    samples = interleave([*_LANES, _PEER], setting.workload, setting.rounds, setting.tick)
    checks = [
        compare(samples, lane, _PEER, CPU, **({"target": _TARGET} if lane == _PROVIDER else {})) for lane in _LANES
    ]
    return Report(setting=setting, samples=samples, checks=checks)
