"""The life of a session, step by step: its world, its processes, and what must hold after every step."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from anyio.from_thread import start_blocking_portal
from hypothesis.stateful import RuleBasedStateMachine

from streamagent import watch
from streamagent.message import Message, fold
from streamagent.testing.checking import provider_requests
from streamagent.testing.evidence import Evidence
from streamagent.testing.invariants import check
from tests.processes import MAX_TURNS, Gate, Process
from tests.world import Activity, World


class Life(RuleBasedStateMachine):
    """One session and its forks, two processes at most; no time passes but by `pass_time`."""

    backend = "asyncio"
    in_file = True
    lag = 0

    def __init__(self):
        super().__init__()
        with ExitStack() as stack:
            self.portal = stack.enter_context(start_blocking_portal(self.backend))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if self.in_file else None
            self.world = World(folder, self.portal.call(Activity))
            self.clock = self.portal.call(Gate)
            stack.enter_context(mock.patch.object(watch, "sleep", lambda _seconds: self.clock.wait()))
            self.stack = stack.pop_all()
        self.processes = []
        self.ids = ["s"]
        self.numbers = iter(range(1, 1_000))
        self.prompts = []
        self.keyed = {}  # prompts by key
        self.decided = []

    def start(self):
        """Start a process."""
        self.processes.append(Process(next(self.numbers), self.world, self.portal, self.lag))

    def at(self, who, id_="s"):
        """Choose a process, with this session open in it."""
        process = self.processes[who % len(self.processes)]
        process.session(id_)
        return process

    def do(self, process, function, *args):
        """Begin something, and go on when nothing happens any more."""
        future = process.begin(function, *args)
        self.settle()
        return future

    def cancel(self, who):
        """Cancel the session's run; when another process drives it, that takes its time."""
        process = self.at(who)
        process.cancels.append(process.begin(process.cancel, "s"))
        self.settle()
        return process

    def settle(self):
        """Wait until nothing happens any more, and look."""
        self.portal.call(self.world.activity.quiet)
        for process in self.processes:
            process.collect()
        self.look()

    def pass_time(self):
        """Let whoever waits for a time go on."""
        self.portal.call(self.clock.open)
        self.settle()

    def new_prompt(self, lane, *, parts=False):
        """Make a prompt as none was before, of two messages or one."""
        content = f"{lane} {len(self.prompts)}"
        self.prompts.append(content)
        return [content, f"{content}, part 2"] if parts else content

    def replace_world(self, world):
        """Go on in a world where the processes have vanished."""
        old, self.world, self.processes = self.processes, world, []
        for process in old:
            process.close()
        self.start()
        self.settle()

    def rows(self, id_):
        """Read a session where it runs, if it does: what waits there for its lag is not in the file yet."""
        holders = [process for process in self.processes if process.number == self.world.log(id_).holder]
        store = [*holders, *self.processes][0].runtime.store

        async def read():
            return fold([fragment async for fragment in store.read(id_)])

        return self.portal.call(read)

    def waiting(self, id_):
        """Read a session's inbox."""
        return self.portal.call(self.processes[0].runtime.store.inbox, id_)

    def look(self):
        for id_ in self.ids:
            if self.processes:
                self.check(id_)

    def check(self, id_):
        log, rows = self.world.log(id_), self.rows(id_)
        holders = [process for process in self.processes if process.number == log.holder]
        evidence = Evidence(
            rows=rows,
            at_rest=not log.left_open and not any(id_ in process.runtime.active for process in holders),
            inbox=self.waiting(id_),
            requests=provider_requests([*rows, Message.user("And?")]),
            before=log.before,
            effects=self.world.effects(id_, {row.id for row in rows}),
            shown=log.shown,
            writes=log.writes,
            accepted=log.accepted,
            cancels=log.cancels,
            gone=log.gone,
            inherited=log.inherited,
            crashed=log.crashed,
            streamed=frozenset({"streams"}),
            gated=frozenset({"gated"}),
            max_turns=MAX_TURNS,
        )
        check(evidence)
        log.before = rows

    def teardown(self):
        try:
            if self.processes:
                self.drain()
        finally:
            for process in self.processes:
                process.close()
            self.stack.close()

    def drain(self):
        """When nothing disturbs it any more, everything that was accepted is answered."""
        while len(self.processes) > 1:
            self.processes.pop().close()
        self.replace_world(self.world.killed())
        for id_ in self.ids:
            process = self.at(0, id_)
            waiting = self.waiting(id_)
            while True:
                self.do(process, process.ask, id_, self.new_prompt("ask"), None, 1_000)
                assert self.world.log(id_).shown[-1].ended
                assert not process.futures
                waiting, before = self.waiting(id_), waiting  # a run takes no more steering than it may take turns
                if not waiting:
                    break
                assert len(waiting) < len(before), (waiting, self.rows(id_))
