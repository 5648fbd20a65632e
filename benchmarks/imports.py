"""`import`: what `import streamagent`, and what the programs of peers begin with, costs a process."""

from __future__ import annotations

import sys

from .harness import child_environment, environment_of, gather, run_command
from .measure import Sample
from .peers import PEERS, python
from .report import Report, Setting, middle

_OURS, _FLOOR = "streamagent", "python"
_SECONDS, _MB = 0.15, 40
_HEAVY = ("aiohttp", "fastapi", "litellm", "nats", "openai", "psycopg", "starlette", "uvicorn")
_PROBE = """
import sys, time
from benchmarks.memory import rss
before = time.process_time()
{statement}
spent = time.process_time() - before
heavy = sum(name in sys.modules for name in {heavy!r})
print('{{"cpu_s": %r, "rss_mb": %r, "heavy_modules": %d}}' % (spent, rss() / 1024**2, heavy))
"""


def measure_import(setting: Setting) -> Report:
    """Import in fresh processes, beside ones that import nothing; the first import compiles and does not count."""
    programs = {name: PEERS[name].imports for name in setting.peers}
    statements = {_FLOOR: "pass", _OURS: "import streamagent", **programs}
    with child_environment() as environment:

        def take(name: str) -> Sample:
            interpreter = python(name) if name in PEERS else sys.executable
            probe = _PROBE.format(statement=statements[name], heavy=_HEAVY)
            return run_command(environment_of(name, environment), [interpreter, "-c", probe])

        gather([*statements], 1, setting.tick, take)
        samples = gather([*statements], setting.rounds, setting.tick, take)
    checks = [
        middle(samples, _OURS, "cpu_s", target=_SECONDS),
        middle(samples, _OURS, "rss_mb", target=_MB),
        middle(samples, _OURS, "heavy_modules", target=0),
        *(middle(samples, name, key) for key in ("cpu_s", "rss_mb") for name in programs if name in samples),
    ]
    return Report(setting=setting, samples=samples, checks=checks)
