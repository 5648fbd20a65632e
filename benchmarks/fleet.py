"""`fleet`: many workers on one PostgreSQL, simulated: how much their looking costs, and how soon one finds work.

Time is the simulation's own. Workers are modelled as `streamagent.worker.Worker` works: each looks at intervals, asks
for more sessions than it has room for, tries some of them at random, and loses those that another one took meanwhile.
What an operation costs the database was measured; `python -m benchmarks.fleet postgresql://…` measures it anew.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import median
from time import perf_counter

import anyio

from streamagent import Message, SessionBusy
from streamagent.holding import LEASE
from streamagent.records import Owner
from streamagent.stores.postgres import PostgresStore
from streamagent.watch import POLL
from streamagent.worker import SPREAD

from .measure import Sample
from .report import Check, Report, Setting

WARM = 20.0  # seconds that do not count
MEASURED = 60.0  # seconds that do
BUS = 0.003  # seconds from an announcement to a worker
HOPS = (0.001, 0.004)  # seconds from what a worker saw to its claim in the database


@dataclass(frozen=True, slots=True)
class Costs:
    """What an operation takes of the database, in seconds: its time from a client on the same machine, alone."""

    look: float = 0.0008
    acquire: float = 0.0009
    conflict: float = 0.0006
    watch: float = 0.0004
    heartbeat: float = 0.0007


@dataclass(slots=True, kw_only=True)
class Fleet:
    """A simulated fleet.

    Args:
        workers: How many.
        sweep: Between two looks of a worker, in seconds.
        load: Share of the slots that are busy.
        bus: Prompts are announced.
        concurrency: Slots of a worker.
        run: Mean length of a run, in seconds.
        poll: Between two looks of a busy worker for what was cancelled elsewhere, in seconds.
        lease: Three times the interval in which a busy worker says that it is alive, in seconds.
        seed: Of chance.
        costs: What operations take.
    """

    workers: int
    sweep: float
    load: float = 0.5
    bus: bool = False
    concurrency: int = 32
    run: float = 30.0
    poll: float = POLL
    lease: float = LEASE
    seed: int = 1
    costs: Costs = field(default_factory=Costs)

    def simulate(self) -> Sample:
        """Let it work for a while."""
        return _Simulation(self).run()

    @property
    def watching(self) -> float:
        """Cores of the database that are taken by what busy workers ask and say while they work."""
        return self.workers * (self.costs.watch / self.poll + 3 * self.costs.heartbeat / self.lease)


class _Simulation:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._random = random.Random(fleet.seed)
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._now = 0.0
        self._free = [fleet.concurrency] * fleet.workers
        self._waiting: dict[int, float] = {}  # since when each session waits, the longest first
        self._counts = dict.fromkeys(("look", "acquire", "conflict"), 0)
        self._delays: list[float] = []

    def run(self) -> Sample:
        fleet = self._fleet
        rate = fleet.load * fleet.workers * fleet.concurrency / fleet.run
        for worker in range(fleet.workers):
            self._after(self._random.uniform(0, fleet.sweep), partial(self._look, worker))
        self._after(0.0, lambda: self._arrive(rate))
        while self._events and self._now < WARM + MEASURED:
            self._now, _, event = heapq.heappop(self._events)
            event()
        delays = sorted(self._delays) or [0.0]
        costs = {name: number * getattr(fleet.costs, name) for name, number in self._counts.items()}
        return {
            "prompts_per_s": len(self._delays) / MEASURED,
            "looks_per_s": self._counts["look"] / MEASURED,
            "conflicts_per_prompt": self._counts["conflict"] / max(1, len(self._delays)),
            "cores_to_find": sum(costs.values()) / MEASURED,
            "cores_to_watch": fleet.watching,
            "pickup_ms_median": median(delays) * 1000,
            "pickup_ms_p99": delays[int(len(delays) * 0.99)] * 1000,
        }

    def _after(self, delay: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + delay, next(self._numbers), event))

    def _count(self, name: str) -> None:
        self._counts[name] += self._now > WARM

    def _arrive(self, rate: float) -> None:
        session = next(self._numbers)
        self._waiting[session] = self._now
        if self._fleet.bus:
            worker = self._random.randrange(self._fleet.workers)
            if self._free[worker] > 0:  # one that is full asks for nothing
                self._after(BUS, lambda: self._claim(worker, session))
        self._after(self._random.expovariate(rate), lambda: self._arrive(rate))

    def _look(self, worker: int) -> None:
        self._after(self._fleet.sweep * self._random.uniform(0.5, 1.5), lambda: self._look(worker))
        free = self._free[worker]
        if free < 1:
            return
        self._count("look")
        seen = [session for session, _ in zip(self._waiting, range(free * SPREAD), strict=False)]
        self._random.shuffle(seen)
        for session in seen[:free]:
            self._after(self._random.uniform(*HOPS), partial(self._claim, worker, session))

    def _claim(self, worker: int, session: int) -> None:
        since = self._waiting.get(session)
        if since is None or self._free[worker] < 1:
            self._count("conflict")
            return
        del self._waiting[session]
        self._count("acquire")
        if self._now > WARM:
            self._delays.append(self._now - since)
        self._free[worker] -= 1
        self._after(self._random.expovariate(1 / self._fleet.run), lambda: self._end(worker))

    def _end(self, worker: int) -> None:
        self._free[worker] += 1


def measure_fleet(setting: Setting) -> Report:
    """Simulate fleets of different sizes and intervals; `sessions` of the workload is the number of workers."""
    workers = setting.workload.sessions
    wide, calm = max(1.0, workers / 100), max(POLL, workers / 500)
    fleets = {
        "10 workers, sweep 1 s": Fleet(workers=10, sweep=1.0),
        "100 workers, sweep 1 s": Fleet(workers=100, sweep=1.0),
        f"{workers:,} workers, sweep 1 s": Fleet(workers=workers, sweep=1.0),
        f"{workers:,} workers, sweep {wide:g} s": Fleet(workers=workers, sweep=wide, poll=calm),
        f"{workers:,} workers, sweep {wide:g} s, 98 % busy": Fleet(workers=workers, sweep=wide, poll=calm, load=0.98),
        f"{workers:,} workers, sweep {wide:g} s, bus": Fleet(workers=workers, sweep=wide, poll=calm, bus=True),
    }
    samples: dict[str, list[Sample]] = {}
    for told, fleet in fleets.items():
        for number in range(setting.rounds):
            setting.tick(f"{told}, round {number + 1}")
            fleet.seed = number
            samples.setdefault(told, []).append(fleet.simulate())
    wanted = samples[f"{workers:,} workers, sweep {wide:g} s"]
    checks = [
        Check(name="looks a second of the whole fleet", value=median(s["looks_per_s"] for s in wanted), target=120),
        Check(
            name="cores of the database, to find work and to watch over it",
            value=median(s["cores_to_find"] + s["cores_to_watch"] for s in wanted),
            target=1.5,
        ),
        Check(name="ms until 99 % are found", value=median(s["pickup_ms_p99"] for s in wanted), target=250),
    ]
    return Report(setting=setting, samples=samples, checks=checks)


async def calibrate(url: str, times: int = 300) -> Costs:
    """Measure what the operations take, in a schema of their own that stays."""
    ours, theirs = Owner(id="ours", ttl=600.0), Owner(id="theirs", ttl=600.0)
    async with PostgresStore(url, schema="streamagent_benchmark") as store:
        names = [f"{perf_counter()}:{number}" for number in range(times)]
        for name in names[:100]:
            await store.enqueue(name, Message.user("hi"))

        async def refused(name: str) -> None:
            try:
                await store.acquire(name, owner=theirs)
            except SessionBusy:
                return
            raise RuntimeError("it was not held")

        look = await _timed(names, lambda _: store.unattended(limit=100))
        acquire = await _timed(names, lambda name: store.acquire(name, owner=ours))
        conflict = await _timed(names, refused)
        watch = await _timed(names, lambda _: store.waiting(names[:32], "cancel"))
        heartbeat = await _timed(names, lambda _: store.heartbeat(ours))
        return Costs(look=look, acquire=acquire, conflict=conflict, watch=watch, heartbeat=heartbeat)


async def _timed(names: list[str], call: Callable[[str], Awaitable[object]]) -> float:
    taken = []
    for name in names:
        begun = perf_counter()
        await call(name)
        taken.append(perf_counter() - begun)
    return median(taken)


if __name__ == "__main__":
    print(anyio.run(calibrate, sys.argv[1]))
