"""Workers that are killed and stopped all the time: `python -m tests.fleet.soak --seconds 60 --workers 4`.

Each worker is a process, all share one PostgreSQL and one NATS server. Prompts come in meanwhile, some of them twice,
and viewers follow. At the end nothing is stuck, no call has run twice that must not, and the rows are in order.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from itertools import count
from pathlib import Path

import anyio
from anyio import to_thread

from streamagent import Runtime
from streamagent.buses.nats import NatsBus
from streamagent.stores.postgres import PostgresStore
from streamagent.testing import Effect, Shown, check_session
from tests.cli.programs import command, environment
from tests.fleet.audit import audit, writes
from tests.fleet.waiting import at_rest
from tests.nats_server import NatsServer
from tests.postgres_server import PostgresServer

CLERK = Path(__file__).with_name("clerk.py")
SESSIONS = 20
RATE = 5.0  # prompts a second
LEASE = 1.0  # seconds
QUIET = 60.0  # seconds for what is left when nobody is killed any more
OPTIONS = ["--lease", str(LEASE), "--sweep", "0.5", "--concurrency", "8", "--grace", "1"]


class Workers:
    """The processes, and what is done to them."""

    def __init__(self, number, server, nats, effects):
        self.counts = Counter()
        self._server = server
        self._nats = nats
        self._names = count(1)
        self._environment = environment(EFFECTS=str(effects))
        self._log = effects.with_name("workers.log")
        self._all = [self._start() for _ in range(number)]

    def _start(self):
        places = ["--db", self._server.url(application_name=f"worker{next(self._names)}"), "--nats", self._nats.url]
        with self._log.open("ab") as log:
            arguments = command("worker", str(CLERK), *OPTIONS, *places)
            return subprocess.Popen(arguments, env=self._environment, stdout=log, stderr=log)

    async def strike(self):
        """Do something to one of them; whoever is ended is begun anew."""
        index = random.randrange(len(self._all))
        worker = self._all[index]
        kind = random.choices(["killed", "stopped", "ended"], [5, 3, 2])[0]
        self.counts[kind] += 1
        if kind == "stopped":
            worker.send_signal(signal.SIGSTOP)
            await anyio.sleep(random.uniform(1.2, 2.5) * LEASE)
            worker.send_signal(signal.SIGCONT)
            return
        ready = self._is_ready(worker)
        worker.send_signal(signal.SIGKILL if kind == "killed" else signal.SIGTERM)
        self._all[index] = self._start()
        code = await to_thread.run_sync(worker.wait)
        if kind == "ended" and code and (ready or code != -signal.SIGTERM):
            self.counts[f"ended with {code}"] += 1

    def end(self):
        """End them well, once they are ready to be told."""
        for worker in self._all:
            while not self._is_ready(worker) and worker.poll() is None:
                time.sleep(0.05)
            worker.send_signal(signal.SIGTERM)
        codes = [worker.wait(60) for worker in self._all]
        if any(codes):
            self.counts[f"ended with {codes}"] += 1

    def _is_ready(self, worker):
        return f"/{worker.pid}@" in self._log.read_text()  # it has said its name

    def remove(self):
        for worker in self._all:
            if worker.poll() is None:
                worker.kill()
                worker.wait()

    @property
    def log(self):
        """What they said, errors alone."""
        lines = [line for line in self._log.read_text().splitlines() if '"level": "error"' in line or line[:1] != "{"]
        return "\n".join(line for line in lines if not line.startswith("worker "))


async def submit(runtime, until, accepted):
    """Submit prompts, some of them twice."""
    while time.monotonic() < until:
        again = accepted and random.random() < 0.2
        number = random.randrange(len(accepted)) if again else len(accepted)
        session, prompt = (
            accepted[number] if again else (f"s{number % SESSIONS}", f"{random.choice([1, 1, 2])} {number}")
        )
        if not again:
            accepted.append((session, prompt))
        await runtime.submit(session, prompt, client_key=f"key {number}")
        await anyio.sleep(random.expovariate(RATE))


async def strike(workers, until):
    async with anyio.create_task_group() as tasks:
        while time.monotonic() < until:
            await anyio.sleep(random.uniform(0.7, 1.3))
            tasks.start_soon(workers.strike)


async def restart(nats, at):
    """Kill the NATS server, and bring it back."""
    await anyio.sleep_until(at)
    await to_thread.run_sync(nats.kill)
    await anyio.sleep(3)
    await to_thread.run_sync(nats.start)


async def watch(runtime, session, shown):
    async for message in runtime.follow(session):
        shown.take(message)


async def quiet(store, sessions):
    """Wait until nothing is left to do; return how long that took."""
    began = time.monotonic()
    with anyio.fail_after(QUIET):
        for session in sessions:
            while not await at_rest(store, session):
                await anyio.sleep(0.05)
        while await store.unattended():
            await anyio.sleep(0.05)
    return time.monotonic() - began


async def live(store, bus, nats, workers, seconds):
    """Let it all happen; return what was accepted, what was shown, and how long the rest took."""
    accepted, viewers = [], {f"s{number}": Shown(ended=True) for number in range(3)}
    async with Runtime(store=store, bus=bus) as runtime, anyio.create_task_group() as watching:
        for session, shown in viewers.items():
            watching.start_soon(watch, runtime, session, shown)
        async with anyio.create_task_group() as tasks:
            until = time.monotonic() + seconds
            tasks.start_soon(submit, runtime, until, accepted)
            tasks.start_soon(strike, workers, until)
            tasks.start_soon(restart, nats, anyio.current_time() + seconds / 2)
        rest = await quiet(store, {session for session, _ in accepted})
        await to_thread.run_sync(workers.end)
        await anyio.sleep(1.5)  # a poll of the viewers
        watching.cancel_scope.cancel()
    return accepted, viewers, rest


async def check(store, server, accepted, viewers, effects):
    """Check each session by its rows, and by what the tools and the viewers wrote down; return figures."""
    ran = Counter(line["call"] for line in effects if line["tool"] == "ship")
    assert not [call for call, times in ran.items() if times > 1], "a call ran twice that must not"
    counts = Counter()
    written = writes(server)
    for session in sorted({session for session, _ in accepted}):
        rows = await check_session(
            store,
            session,
            accepted={f"key {n}": prompt for n, (of, prompt) in enumerate(accepted) if of == session},
            effects=[Effect(call=e["call"], tool=e["tool"], args={}) for e in effects if e["session"] == session],
            retry_safe=frozenset({"look"}),
            writes=written[session],
            shown=[viewers[session]] if session in viewers else [],
            crashed=True,
        )
        for row in rows:
            query = row.query or {}
            counts[row.type] += 1
            counts["superseded turns"] += row.type == "stop" and query.get("cut") == "resumed"
            counts["poison"] += (query.get("error") or {}).get("kind") == "poison"
            counts["unknown outcomes"] += "outcome is unknown" in row.content
    counts["prompts"] = len(accepted)
    counts["looked up twice"] = sum(line["tool"] == "look" for line in effects) - len(
        {line["call"] for line in effects if line["tool"] == "look"}
    )
    return counts


def soak(seconds, number):
    """Do it all; return the figures."""
    with tempfile.TemporaryDirectory(prefix="streamagent-soak-") as folder:
        effects = Path(folder) / "effects"
        effects.touch()
        server, nats = PostgresServer(), NatsServer()
        anyio.run(_prepare, server)
        workers = Workers(number, server, nats, effects)
        try:
            return anyio.run(_soak, server, nats, workers, effects, seconds)
        except BaseException:
            print(workers.log[-20_000:], file=sys.stderr)
            raise
        finally:
            workers.remove()
            nats.remove()
            server.remove()


async def _prepare(server):
    async with PostgresStore(server.url()):
        audit(server)


async def _soak(server, nats, workers, effects, seconds):
    accepted, viewers, rest = await live(PostgresStore(server.url()), NatsBus(nats.url), nats, workers, seconds)
    lines = [json.loads(line) for line in effects.read_text().splitlines()]
    async with PostgresStore(server.url()) as store:
        counts = await check(store, server, accepted, viewers, lines)
    assert not [name for name in workers.counts if "with" in name], workers.counts
    return {**workers.counts, **counts, "seconds until all was answered": round(rest, 1)}


def main():
    parser = ArgumentParser(prog="python -m tests.fleet.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    for name, value in soak(options.seconds, options.workers).items():
        print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
