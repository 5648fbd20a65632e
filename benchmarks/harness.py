"""Run contenders in processes of their own, in interleaved rounds, against a provider in another one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from .measure import Sample
from .workload import Workload

Tick = Callable[[str], None]  # told what runs next
Samples = dict[str, list[Sample]]

_ROOT = Path(__file__).parent.parent
_LIMIT = 900  # seconds that one sample may take
_CLOSE_LIMIT = 5  # seconds that a server may take to end


@contextmanager
def child_environment() -> Iterator[dict[str, str]]:
    """Give the environment of children: LiteLLM looks nothing up over the network, and bytecode is compiled once."""
    with TemporaryDirectory() as cache:
        environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        if environment.pop("PYTHONDONTWRITEBYTECODE", None):
            environment.setdefault("PYTHONPYCACHEPREFIX", cache)
        yield environment


def run_child(environment: Mapping[str, str], *args: str) -> Sample:
    """Run Python with these arguments and read the sample that it prints.

    Raises:
        RuntimeError: It failed; its errors were printed.
    """
    command = [sys.executable, *args]
    done = subprocess.run(command, env=environment, cwd=_ROOT, stdout=subprocess.PIPE, timeout=_LIMIT, check=False)
    if done.returncode:
        raise RuntimeError(f"{args} ended with status {done.returncode}")
    sample: Sample = orjson.loads(done.stdout)
    return sample


@contextmanager
def serving(workload: Workload) -> Iterator[str]:
    """Serve a workload from a process of its own; give its address.

    Raises:
        RuntimeError: The server did not start.
    """
    command = [sys.executable, "-m", "benchmarks.server", workload.to_json()]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            port = server.stdout.readline().strip().decode() if server.stdout else ""
            if not port:
                raise RuntimeError("the server of the benchmark did not start")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            try:
                server.communicate(timeout=_CLOSE_LIMIT)  # closes its standard input
            except subprocess.TimeoutExpired:
                server.kill()


def interleave(contenders: Sequence[str], workload: Workload, rounds: int, tick: Tick) -> Samples:
    """Measure each contender once a round, each time in a fresh process; another one begins each round."""
    samples: Samples = {name: [] for name in contenders}
    with serving(workload) as url, child_environment() as environment:
        task = replace(workload, url=url).to_json()
        for number in range(rounds):
            first = number % len(contenders)
            for name in (*contenders[first:], *contenders[:first]):
                tick(f"round {number + 1}: {name}")
                samples[name].append(run_child(environment, "-m", "benchmarks.contenders", name, task))
    return samples
