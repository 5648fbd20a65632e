"""`idle_10k`: what an open session costs while nothing happens in it."""

from __future__ import annotations

from .harness import interleave
from .peers import PEERS
from .report import Report, Setting, middle

_OURS = "streamagent_direct"
_KEY = "rss_kb_per_session"
_KB = 0.5


def measure_idle(setting: Setting) -> Report:
    """Open sessions, and whatever peers have in their place, and hold them."""
    peers = [name for name in setting.peers if PEERS[name].idles]
    samples = interleave([_OURS, *peers], setting.workload, setting.rounds, setting.tick, "idle")
    checks = [middle(samples, _OURS, _KEY, target=_KB)]
    checks += [middle(samples, name, _KEY) for name in peers if name in samples]
    left_out = [name for name in setting.peers if name not in peers]
    return Report(setting=setting, samples=samples, checks=checks, left_out=left_out)
