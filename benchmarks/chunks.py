"""`chunk_burst`, `chunk_paced`, `sessions_500`, `first_delta`: whole sessions beside a bare loop and the peers."""

from __future__ import annotations

from .harness import interleave
from .report import Report, Setting, compare, middle, subtract

OURS, DUPLEX, FLOOR = "streamagent_direct", "streamagent_duplex", "aiohttp_loop"
CPU = "cpu_us_per_chunk"

_BURST = 0.6  # of the CPU of a bare aiohttp loop
_LEAD = 8  # times our CPU that every peer takes
_PULLED, _RECEIVED = 1.0, 1.5  # of the CPU of a bare aiohttp loop
_KB = 25
_MS = 1.0


def measure_burst(setting: Setting) -> Report:
    """Compare the CPU of sessions whose responses come in one write."""
    samples = interleave([OURS, FLOOR, *setting.peers], setting.workload, setting.rounds, setting.tick)
    peers = [name for name in setting.peers if name in samples]
    checks = [
        compare(samples, OURS, FLOOR, CPU, target=_BURST),
        *(compare(samples, name, OURS, CPU, target=_LEAD, at_least=True) for name in peers),
        *(compare(samples, name, FLOOR, CPU) for name in peers),
    ]
    return Report(setting=setting, samples=samples, checks=checks)


def measure_paced(setting: Setting) -> Report:
    """Compare the CPU of sessions whose chunks come one by one, by `ask` and by `send` and `receive`."""
    samples = interleave([OURS, DUPLEX, FLOOR, *setting.peers], setting.workload, setting.rounds, setting.tick)
    peers = [name for name in setting.peers if name in samples]
    checks = [
        compare(samples, OURS, FLOOR, CPU, target=_PULLED),
        compare(samples, DUPLEX, FLOOR, CPU, target=_RECEIVED),
        *(compare(samples, name, OURS, CPU) for name in peers),
    ]
    return Report(setting=setting, samples=samples, checks=checks)


def measure_open(setting: Setting) -> Report:
    """Compare the memory of sessions that all stream at once."""
    samples = interleave([OURS, FLOOR, *setting.peers], setting.workload, setting.rounds, setting.tick)
    key = "rss_kb_per_session"
    others = [name for name in (FLOOR, *setting.peers) if name in samples]
    checks = [middle(samples, OURS, key, target=_KB)]
    checks += [middle(samples, name, key) for name in others]
    return Report(setting=setting, samples=samples, checks=checks)


def measure_first(setting: Setting) -> Report:
    """Compare how long one session's first text takes, alone in its process."""
    samples = interleave([OURS, FLOOR, *setting.peers], setting.workload, setting.rounds, setting.tick)
    checks = [subtract(samples, OURS, FLOOR, "first_ms", target=_MS)]
    checks += [subtract(samples, name, FLOOR, "first_ms") for name in setting.peers if name in samples]
    return Report(setting=setting, samples=samples, checks=checks)
