"""The life of a session, step by step: its world, its processes, and what must hold after every step."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from anyio.from_thread import start_blocking_portal
from hypothesis.stateful import RuleBasedStateMachine

from streamagent import duplex, watch
from streamagent.message import Message, fold
from streamagent.testing.checking import provider_requests
from streamagent.testing.evidence import Evidence, cut_of, is_final
from streamagent.testing.invariants import check
from tests.processes import GATED, MAX_TURNS, RETRY_SAFE, STREAMED, Gate, Process
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
            for module in (watch, duplex):
                stack.enter_context(mock.patch.object(module, "sleep", lambda _seconds: self.clock.wait()))
            self.stack = stack.pop_all()
        self.processes = []
        self.ids = ["s"]
        self.numbers = iter(range(1, 1_000))
        self.prompts = []
        self.keyed = {}  # prompts by key
        self.decided = []
        self.vanished = []  # owners of whom nobody knows yet that they are gone

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

    def replace_world(self, world, *, noticed=True):
        """Go on in a world where the processes have vanished, and perhaps nobody knows that yet."""
        old, self.world, self.processes = self.processes, world, []
        for process in old:
            process.close()
        self.vanished += [process.owner for process in old]
        self.start()
        if noticed:
            self.notice()
        self.settle()

    def notice(self):
        """Let the leases of those who have vanished run out."""
        self.retire(*self.vanished)
        self.vanished.clear()

    def retire(self, *owners):
        """Let the leases of owners run out."""
        for owner in owners:
            self.portal.call(self.processes[0].runtime.store.retire, owner)

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
            streamed=STREAMED,
            gated=GATED,
            retry_safe=RETRY_SAFE,
            max_turns=MAX_TURNS,
        )
        check(evidence)
        self.check_leases(id_)
        assert not log.wrong, log.wrong
        said = {row.content for row in (*rows, *evidence.inbox)}
        assert not (found := log.refused & said), f"refused, and stored: {found}"
        for number, row in enumerate(rows):
            if row.id in log.early:  # its answer was the last word, so nobody takes it anew
                stop = next((later for later in rows[number:] if later.type == "stop"), None)
                assert stop is None or is_final(stop) or cut_of(stop) == "crashed", (row, stop)
        log.before = rows

    def check_leases(self, id_):
        """A session is held by whoever runs it, and as long as that one lives; what nobody holds waits for somebody."""
        log = self.world.log(id_)
        store = self.processes[0].runtime.store
        info = self.portal.call(store.info, id_)
        assert info is None or info.running == (log.owner in self.world.alive), (info, log.owner)
        for process in self.processes:
            assert log.owner != process.owner or id_ in process.runtime.active, f"{id_} is held, and nobody runs it"
        waits = bool(self.waiting(id_)) if log.owner is None else log.owner not in self.world.alive
        assert info is None or waits == (id_ in self.portal.call(store.unattended)), (waits, log.owner)

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
        if len(self.prompts) % 2:
            self.go_on()
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

    def go_on(self):
        """What a killed process had begun comes to its end, too."""
        process = self.at(0)
        going_on = self.do(process, process.resume, 1_000)
        while not going_on.done():  # a tool that runs again waits once more
            self.portal.call(process.gate.open)
            self.settle()
        assert self.world.log("s").shown[-1].ended
