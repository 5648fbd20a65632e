"""Run contenders in processes of their own, in interleaved rounds, against a provider in another one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

from .measure import LOOP, Sample, loop
from .peers import PEERS, command
from .workload import Workload

Tick = Callable[[str], None]  # told what runs next
Samples = dict[str, list[Sample]]

_ROOT = Path(__file__).parent.parent
_LIMIT = 1800  # seconds that one sample may take
_CLOSE_LIMIT = 5  # seconds that a server may take to end
_SAID = 500  # characters of what a child said that failed
_CACHE = "PYTHONPYCACHEPREFIX"


@contextmanager
def child_environment() -> Iterator[dict[str, str]]:
    """Give the environment of children: one loop for all, nothing looked up in the network, bytecode compiled once."""
    with TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            LOOP: loop(),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "AGNO_TELEMETRY": "false",
            "OTEL_SDK_DISABLED": "true",
        }
        if environment.pop("PYTHONDONTWRITEBYTECODE", None):
            environment.setdefault(_CACHE, cache)
        yield environment


def environment_of(name: str, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of a contender: what is installed of a peer was compiled when it was installed."""
    return {key: value for key, value in environment.items() if key != _CACHE} if name in PEERS else environment


def run_child(environment: Mapping[str, str], *args: str) -> Sample:
    """Run Python with these arguments and read the sample that it prints.

    Raises:
        RuntimeError: It failed, with the last that it said.
    """
    return run_command(environment, [sys.executable, *args])


def run_command(environment: Mapping[str, str], arguments: Sequence[str]) -> Sample:
    """Run a command and read the sample that it prints.

    Raises:
        RuntimeError: It failed, with the last that it said.
    """
    done = subprocess.run(arguments, env=environment, cwd=_ROOT, capture_output=True, timeout=_LIMIT, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-_SAID:]
        raise RuntimeError(f"{' '.join(arguments)[:_SAID]} ended with status {done.returncode}: {said}")
    sample: Sample = orjson.loads(done.stdout.splitlines()[-1])
    return sample


@contextmanager
def serving(workload: Workload) -> Iterator[str]:
    """Serve a workload from a process of its own; give its address.

    Raises:
        RuntimeError: The server did not start.
    """
    arguments = [sys.executable, "-m", "benchmarks.server", workload.to_json()]
    with subprocess.Popen(arguments, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
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


@dataclass(frozen=True, slots=True)
class Arena:
    """Where contenders meet: a provider, and the environment of what runs.

    Args:
        environment: Of children.
        url: Where the provider listens.
    """

    environment: Mapping[str, str]
    url: str

    def sample(self, name: str, how: str, workload: Workload) -> Sample:
        """Measure a contender in a fresh process; in a fresh folder, too, unless the workload names one.

        Raises:
            RuntimeError: It failed.
        """
        with TemporaryDirectory() as folder:
            task = replace(workload, url=self.url, folder=workload.folder or folder)
            return run_command(environment_of(name, self.environment), [*command(name, how), task.to_json()])


@contextmanager
def open_arena(workload: Workload) -> Iterator[Arena]:
    """Open a place for contenders."""
    with serving(workload) as url, child_environment() as environment:
        yield Arena(environment, url)


def turns(contenders: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield who is next: each contender once a round, another one first in each."""
    for number in range(rounds):
        first = number % len(contenders)
        for name in (*contenders[first:], *contenders[:first]):
            yield number, name


def interleave(
    contenders: Sequence[str], workload: Workload, rounds: int, tick: Tick, how: str = "sessions"
) -> Samples:
    """Measure each contender once a round, each time in a fresh process; a peer that fails is left out."""
    with open_arena(workload) as arena:
        return gather(contenders, rounds, tick, lambda name: arena.sample(name, how, workload))


def gather(contenders: Sequence[str], rounds: int, tick: Tick, take: Callable[[str], Sample]) -> Samples:
    """Take a sample of each contender once a round; a peer that fails is left out.

    Raises:
        RuntimeError: One that is no peer failed.
    """
    samples: Samples = {name: [] for name in contenders}
    for number, name in turns(contenders, rounds):
        if name not in samples:
            continue
        tick(f"round {number + 1}: {name}")
        try:
            samples[name].append(take(name))
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            if name not in PEERS:
                raise
            print(f"{name} is left out: {error}", file=sys.stderr)
            del samples[name]
    return samples
