"""`context_growth`, `context_200mb`: one turn on what is stored already."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from .harness import Arena, Samples, gather, open_arena
from .measure import Sample
from .report import Report, Setting, compare, middle
from .workload import Workload

_OURS, _FLOOR = "streamagent_direct", "aiohttp_rows"
_SLOPE, _WRITTEN = "cpu_us_per_message", "written_ratio"
_US = 10  # of CPU a stored message
_FLAT = 1.25  # times as much is written on the longest history as on the shortest one
_MB = 8
BIG = ("openai", "litellm")  # peers that have been measured with so much


def measure_growth(setting: Setting) -> Report:
    """Take a turn on histories of a hundredth, a tenth, and all of the workload's messages."""
    longest = setting.workload.history
    lengths = [max(1, longest // 100), max(1, longest // 10), longest]
    samples = _measure([_OURS, _FLOOR, *setting.peers], lengths, setting)
    others = [name for name in (_FLOOR, *setting.peers) if name in samples]
    checks = [
        middle(samples, _OURS, _SLOPE, target=_US),
        middle(samples, _OURS, _WRITTEN, target=_FLAT),
        *(middle(samples, name, _SLOPE) for name in others),
        *(middle(samples, name, _WRITTEN) for name in others),
    ]
    return Report(setting=setting, samples=samples, checks=checks)


def measure_big(setting: Setting) -> Report:
    """Take a turn on a history that is larger than what a process should hold."""
    samples = _measure([_OURS, _FLOOR, *setting.peers], [setting.workload.history], setting)
    others = [name for name in (_FLOOR, *setting.peers) if name in samples]
    key = f"peak_mb at {setting.workload.history}"
    checks = [middle(samples, _OURS, key, target=_MB), *(middle(samples, name, key) for name in others)]
    checks += [compare(samples, _OURS, name, f"cpu_ms at {setting.workload.history}") for name in others]
    return Report(setting=setting, samples=samples, checks=checks)


def _measure(contenders: Sequence[str], lengths: Sequence[int], setting: Setting) -> Samples:
    """Store each history once, and take a turn on each once a round."""
    with TemporaryDirectory() as folder, open_arena(setting.workload) as arena:

        def take(name: str) -> Sample:
            tasks = [_task(setting.workload, folder, name, length) for length in lengths]
            return _combine(lengths, [_turn(arena, name, task) for task in tasks])

        return gather(contenders, setting.rounds, setting.tick, take)


def _task(workload: Workload, folder: str, name: str, length: int) -> Workload:
    return replace(workload, history=length, sessions=1, folder=str(Path(folder, name, str(length))))


def _turn(arena: Arena, name: str, task: Workload) -> Sample:
    """Take the turn on a copy: what an earlier round has added is no part of the history."""
    if not Path(task.folder).exists():
        Path(task.folder).mkdir(parents=True)
        arena.sample(name, "fill", task)
    with TemporaryDirectory() as folder:
        copy = shutil.copytree(task.folder, Path(folder, name))
        return arena.sample(name, "turn", replace(task, folder=str(copy)))


def _combine(lengths: Sequence[int], turns: Sequence[Sample]) -> Sample:
    found = {f"{key} at {length}": turn[key] for length, turn in zip(lengths, turns, strict=True) for key in turn}
    if len(lengths) > 1:
        shortest, longest = turns[0], turns[-1]
        found[_SLOPE] = (longest["cpu_ms"] - shortest["cpu_ms"]) * 1000 / (lengths[-1] - lengths[0])
        found[_WRITTEN] = longest["written_kb"] / (shortest["written_kb"] or 1)
    return found
