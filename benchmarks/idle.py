"""`idle_10k`: what an open session costs while nothing happens in it."""

from __future__ import annotations

from dataclasses import replace

from .harness import gather, open_arena
from .measure import Sample
from .peers import PEERS
from .report import Report, Setting, middle

_OURS = "streamagent_direct"
_KEY = "rss_kb_per_session"
_KB = 0.5
_LESS = 10  # a peer opens one session for so many of ours: some take files and milliseconds for each


def measure_idle(setting: Setting) -> Report:
    """Open sessions, and whatever peers have in their place, and hold them."""
    fewer = replace(setting.workload, sessions=max(1, setting.workload.sessions // _LESS))
    with open_arena(setting.workload) as arena:

        def take(name: str) -> Sample:
            return arena.sample(name, "idle", fewer if name in PEERS else setting.workload)

        samples = gather([_OURS, *setting.peers], setting.rounds, setting.tick, take)
    checks = [middle(samples, _OURS, _KEY, target=_KB)]
    checks += [middle(samples, name, _KEY) for name in setting.peers if name in samples]
    return Report(setting=setting, samples=samples, checks=checks)
