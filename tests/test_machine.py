"""A session's life as a state machine: after every step the rows and logs keep all invariants.

`pytest tests/test_machine.py --hypothesis-profile thorough` looks further, and elsewhere each time.
"""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from streamagent.errors import ConflictError, LeaseLost, SessionBusy
from tests.life import Life
from tests.processes import TOOLS, VERDICTS

NAMES = ("anthropic/claude", "deepseek/chat", "scripted")
LOOKS = 3  # intervals after which a cancel has come through: it is seen in one, its end in the next

turn = st.fixed_dictionaries(
    {
        "model": st.sampled_from(NAMES),
        "reasoning": st.booleans(),
        "text": st.integers(0, 3),
        "calls": st.lists(st.sampled_from(TOOLS), max_size=3),
        "end": st.sampled_from(["well"] * 6 + ["length", "error", "waits", "raises", "silent"]),
    }
)
script = st.lists(turn, min_size=1, max_size=4)
some = st.integers(0, 12) | st.just(99)  # messages that a viewer reads before it leaves; 99 for all
either = st.integers(0, 1)  # process
one = st.integers(0, 9)  # of those that there are
verdict = st.sampled_from(sorted(VERDICTS))
noticed = st.sampled_from([True, True, False])  # the others know that the process is gone


class LifeInAFile(Life):
    """What a program may do, and what may happen to it."""

    @initialize(lag=st.sampled_from([0, 10_000]))
    def begin(self, lag):
        self.lag = lag
        self.start()

    @rule(who=either, turns=script, key=st.booleans(), limit=some, which=one, parts=st.booleans())
    def ask(self, who, turns, key, limit, which, parts):
        id_ = self.ids[which % len(self.ids)]
        process = self.at(who, id_)
        prompt = self.new_prompt("ask", parts=parts)
        name = f"key of {self.prompts[-1]}" if key else None
        self.keyed |= {name: prompt} if key else {}
        process.model.turns = turns
        owner = self.world.log(id_).owner
        another_has_it = owner in self.world.alive and owner != process.owner
        asking = self.do(process, process.ask, id_, prompt, name, limit)
        if another_has_it and limit:
            assert isinstance(asking.exception(timeout=0), SessionBusy)

    @precondition(lambda self: self.keyed.keys() & self.world.log("s").accepted.keys())
    @rule(who=either, which=one, limit=some, other=st.booleans())
    def ask_again(self, who, which, limit, other):
        accepted = [key for key in self.world.log("s").accepted if key in self.keyed]
        key = accepted[which % len(accepted)]
        prompt = self.keyed[key]
        process = self.at(who)
        if other:
            self.do(process, self.refused, process, prompt, key)
        else:
            self.do(process, process.ask, "s", prompt, key, limit)

    async def refused(self, process, prompt, key):
        another = f"not {prompt}" if isinstance(prompt, str) else [*prompt[:-1], "not this"]
        with pytest.raises((ConflictError, LeaseLost, SessionBusy)):
            await process.session("s").ask(another, client_key=key)

    @rule(who=either, limit=some)
    def read_on(self, who, limit):
        process = self.at(who)
        reply, _ = process.replies.get("s", (None, None))
        if reply is not None and not reply.driven:
            self.do(process, process.read, "s", limit)

    @rule(who=either, turns=script, limit=some)
    def send(self, who, turns, limit):
        process = self.at(who)
        process.model.turns = turns
        self.do(process, process.send, self.new_prompt("send"))
        if not process.receiving:
            self.do(process, process.receive, limit)

    @rule(who=either)
    def follow_up(self, who):
        process = self.at(who)
        self.do(process, process.session("s").follow_up, self.new_prompt("follow_up"))

    @rule(who=either, turns=script, interrupt=st.booleans())
    def steer(self, who, turns, interrupt):
        process = self.at(who)
        process.model.turns = turns
        self.do(process, partial(process.session("s").steer, self.new_prompt("steer"), interrupt=interrupt))

    @rule(who=either)
    def interrupt(self, who):
        process = self.at(who)
        if reply := process.runtime.active.get("s"):
            self.portal.call(reply.interrupt)
            self.settle()

    @rule(who=either, looks=st.integers(0, 1))
    def cancel_and_go_on(self, who, looks):
        self.cancel(who)
        for _ in range(looks):
            self.pass_time()

    @rule(who=either)
    def cancel_and_wait(self, who):
        process = self.cancel(who)
        for _ in range(LOOKS):
            self.pass_time()
        assert not process.cancels or self.world.log("s").left_open, self.rows("s")

    @rule()
    def wait(self):
        self.pass_time()

    @rule(who=either, which=one, how=verdict)
    def decide(self, who, which, how):
        process = self.at(who)
        waiting = self.portal.call(process.sessions["s"].pending)
        if waiting:
            chosen = waiting[which % len(waiting)].id
            self.decided.append(chosen)
            self.do(process, process.decide, chosen, how)

    @precondition(lambda self: self.decided)
    @rule(who=either, which=one, how=verdict)
    def decide_again(self, who, which, how):
        process = self.at(who)
        self.do(process, process.decide, self.decided[which % len(self.decided)], how)

    @precondition(lambda self: self.decided)
    @rule(who=either, which=one)
    def revoke(self, who, which):
        process = self.at(who)
        self.do(process, process.revoke, which)

    @rule(who=either, turns=script, limit=some)
    def resume(self, who, turns, limit):
        process = self.at(who)
        process.model.turns = turns
        self.do(process, process.resume, limit)

    @rule(who=either)
    def let_through(self, who):
        self.portal.call(self.at(who).gate.open)
        self.settle()

    @rule(at=st.integers(0, 30))
    def fork(self, at):
        if rows := self.rows("s"):
            at = 1 + at % len(rows)
            new = f"fork {len(self.ids)}"
            process = self.at(0)
            self.do(process, partial(process.session("s").fork, new, at=at))
            self.ids.append(new)
            log = self.world.log(new)
            log.left_open, log.inherited, log.crashed = True, at, self.world.log("s").crashed
            assert [row.id for row in self.rows(new)] == [row.id for row in rows[:at]]

    @rule()
    def delete(self):
        self.do(self.processes[0], self.conflict if len(self.ids) > 1 else self.erase)

    async def erase(self):
        await self.processes[0].runtime.store.delete("s")
        self.world.log("s").forget()

    async def conflict(self):
        with pytest.raises(ConflictError):
            await self.processes[0].runtime.store.delete("s")

    @rule(who=either, turns=script, points=st.integers(1, 60), limit=some, noticed=noticed)
    def killed_while_it_answers(self, who, turns, points, limit, noticed):
        process = self.at(who)
        process.kill_after(points)
        self.ask(who, turns, True, limit, 0, False)
        self.replace_world(process.image or self.world.killed(), noticed=noticed)

    @rule(who=either, turns=script, points=st.lists(st.integers(1, 40), min_size=1, max_size=3), limit=some)
    def killed_while_it_goes_on(self, who, turns, points, limit):
        self.notice()
        for number in points:
            process = self.at(who)
            process.kill_after(number)
            self.resume(who, [*turns], limit)
            self.replace_world(process.image or self.world.killed())

    @rule(points=st.integers(1, 10), who=either, noticed=noticed)
    def killed_while_it_cancels(self, points, who, noticed):
        process = self.at(who)
        process.kill_after(points)
        self.cancel(who)
        self.replace_world(process.image or self.world.killed(), noticed=noticed)

    @precondition(lambda self: self.vanished)
    @rule()
    def vanished_ones_are_noticed(self):
        self.notice()
        self.look()

    @precondition(lambda self: len(self.processes) == 2)
    @rule(who=either, turns=script, limit=st.integers(1, 12) | st.just(99), asks=st.booleans(), wakes=st.booleans())
    def taken_for_dead(self, who, turns, limit, asks, wakes):
        dead, other = self.at(who), self.at(1 - who)
        free = "s" not in other.runtime.active and self.world.log("s").owner in (None, dead.owner)
        fence = self.world.log("s").fence
        self.retire(dead.owner)
        self.look()
        if asks:
            self.ask(1 - who, turns, True, limit, 0, False)
        else:
            self.resume(1 - who, turns, limit)
        assert not free or self.world.log("s").fence > fence, "nobody had it, and it was refused"
        if wakes:
            dead.wake()
            self.pass_time()

    @precondition(lambda self: len(self.processes) == 1)
    @rule()
    def second_process(self):
        self.start()
        self.look()

    @precondition(lambda self: len(self.processes) == 2)
    @rule(who=either)
    def leave(self, who):
        self.processes.pop(who).close()
        self.settle()


class LifeInMemory(LifeInAFile):
    """The same without a file, on the other event loop."""

    backend = "trio"
    in_file = False


THOROUGH = settings.get_current_profile_name() == "thorough"
QUICK = settings(
    max_examples=40,
    stateful_step_count=20,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestInAFile = pytest.mark.timeout(7_200 if THOROUGH else 120)(LifeInAFile.TestCase)
TestInMemory = pytest.mark.timeout(7_200 if THOROUGH else 120)(LifeInMemory.TestCase)
TestInAFile.settings = TestInMemory.settings = settings() if THOROUGH else QUICK
