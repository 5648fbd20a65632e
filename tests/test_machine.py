"""A session's life as a state machine: after every step the rows and logs keep all invariants.

`pytest tests/test_machine.py --hypothesis-profile thorough` looks further, and elsewhere each time.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from anyio import EndOfStream
from anyio.from_thread import start_blocking_portal
from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from streamagent import Agent, Pipeline, Runtime, persist, tool_dispatch
from streamagent._core.profiles import profile_for
from streamagent._core.request import build_request
from streamagent.approvals import Verdict
from streamagent.errors import ApprovalGone, ApprovalNotFound, ConflictError, LeaseLost, SessionBusy
from streamagent.message import Message, fold, new_id
from tests.invariants import RULES, SIGNED, Evidence, Shown, check, lint
from tests.world import Activity, Deed, Gate, World

MAX_TURNS = 4
TOOLS = ("returns", "raises", "streams", "waits", "gated", "unknown")
NAMES = ("anthropic/claude", "deepseek/chat", "scripted")

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


def messages(spec):
    """Write a turn out."""
    signature = {"thinking_blocks": [SIGNED + spec["model"].rpartition("/")[2]]}
    if spec["reasoning"]:
        yield Message(type="reasoning", content="hm", query={"provider": signature})
    id_ = new_id()
    for number in range(spec["text"]):
        yield Message(id=id_, content=f"text {number} ", more=number + 1 < spec["text"])
    for number, name in enumerate(spec["calls"]):
        opened = Message(type="tool_call", content="{", more=True)
        yield opened
        yield replace(opened, content="}", more=False, query={"tool": name, "id": f"c{number}", "args": {}})
    if spec["end"] == "error":
        yield Message.stop("error", error={"kind": "provider_error", "message": "no", "retryable": False})
    elif spec["end"] != "silent":
        well = "tool_calls" if spec["calls"] else "stop"
        yield Message.stop("length" if spec["end"] == "length" else well, model=spec["model"])


def requests(context):
    """Build what each provider would be sent."""
    return {name: build_request(context, profile_for(name)) for name in RULES}


class Improviser:
    """A model that plays the turns which it was given last, then a plain answer."""

    name = "scripted"

    def __init__(self, gate):
        self.turns = []
        self._gate = gate

    async def stream(self, context, *, tools=(), settings=None, deadline=None):
        given = [message async for message in context]
        assert not (wrong := [text for item in requests(given).items() for text in lint(*item)]), (wrong, given)
        plain = {"model": "scripted", "reasoning": False, "text": 1, "calls": [], "end": "well"}
        spec = self.turns.pop(0) if self.turns else plain
        for message in messages(spec):
            await checkpoint()
            if message.type == "stop" and spec["end"] == "waits":
                await self._gate.wait()
            if message.type == "stop" and spec["end"] == "raises":
                raise RuntimeError("a bug")
            yield message


class Process:
    """A runtime in a world, its sessions, and the replies that it has begun."""

    def __init__(self, number, world, portal, lag_ms):
        self.number = number
        self.world = world
        self.countdown = 0
        self.image = None
        self.portal = portal
        self.gate = portal.call(Gate)
        self.model = Improviser(self.gate)
        tools = [Deed(name, world, self.gate, requires_approval=name == "gated") for name in TOOLS if name != "unknown"]
        pipeline = Pipeline(reply=[tool_dispatch(tools), persist(lag_ms=lag_ms)])
        self.agent = Agent(self.model, tools=tools, pipeline=pipeline, max_turns=MAX_TURNS)
        self.runtime = Runtime(store=world.store(number, self._point))
        self.sessions = {}
        self.replies = {}
        self.heard = Shown()
        self.receiving = False
        self._stack = ExitStack()
        self._stack.enter_context(portal.wrap_async_context_manager(self.runtime))

    def session(self, id_):
        if id_ not in self.sessions:
            opened = self.portal.wrap_async_context_manager(self.agent.session(id_, runtime=self.runtime))
            self.sessions[id_] = self._stack.enter_context(opened)
        return self.sessions[id_]

    def close(self):
        with suppress(LeaseLost):
            self._stack.close()
        for log in self.world.logs.values():
            if log.holder == self.number:
                log.holder = None

    async def ask(self, id_, content, key, limit):
        """Ask, and read a number of messages."""
        shown = Shown(key=key, prompt=content)
        self.world.log(id_).shown.append(shown)
        self.replies[id_] = self.sessions[id_].ask(content, client_key=key), shown
        await self.read(id_, limit)

    async def resume(self, limit):
        """Go on with what was decided, or what waits."""
        shown = Shown()
        self.world.log("s").shown.append(shown)
        self.replies["s"] = self.sessions["s"].resume(), shown
        await self.read("s", limit)

    async def decide(self, approval, how):
        """Decide about a call; when that was done before, or is too late, nothing comes of it."""
        args = {"edited": True} if how == "edit" else None
        with suppress(ConflictError, ApprovalGone, ApprovalNotFound):
            await self.sessions["s"].decide(Verdict(approval=approval, approve=how != "reject", args=args))

    async def read(self, id_, limit):
        """Read on."""
        reply, shown = self.replies[id_]
        for _ in range(limit):
            try:
                shown.take(await anext(reply))
            except StopAsyncIteration:
                shown.ended = True
                return

    async def receive(self, limit):
        """Receive a number of messages of the session's duplex side."""
        self.receiving = True
        with suppress(EndOfStream):
            for _ in range(limit):
                self.heard.take(await self.sessions["s"].receive())
        self.receiving = False

    async def cancel(self, id_):
        """Cancel, and note what was written until then."""
        active = self.runtime.active.get(id_)
        log = self.world.log(id_)
        fence = active._run.fence if active is not None and active._run is not None else None
        await self.sessions[id_].cancel()
        if fence is not None:
            log.cancels.append((fence, len(log.writes)))

    def kill_after(self, points):
        """Have the world as it is at a coming point of the store kept."""
        self.countdown = points

    def _point(self):
        if self.countdown:
            self.countdown -= 1
            if not self.countdown:
                self.image = self.world.killed()


class Life(RuleBasedStateMachine):
    """One session and its forks, two processes at most."""

    backend = "asyncio"
    in_file = True

    def __init__(self):
        super().__init__()
        self.stack = ExitStack()
        self.portal = self.stack.enter_context(start_blocking_portal(self.backend))
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory())) if self.in_file else None
        self.world = World(folder, self.portal.call(Activity))
        self.processes = []
        self.futures = []
        self.ids = ["s"]
        self.numbers = iter(range(1, 1_000))
        self.prompts = []
        self.decided = []

    @initialize(lag=st.sampled_from([0, 10_000]))
    def begin(self, lag):
        self.lag = lag
        self.start()

    def start(self):
        process = Process(next(self.numbers), self.world, self.portal, self.lag)
        self.processes.append(process)
        return process

    def do(self, function, *args):
        """Start something in the event loop, and go on when nothing happens there any more."""
        self.futures.append(self.portal.start_task_soon(function, *args))
        self.settle()

    def settle(self):
        self.portal.call(self.world.activity.quiet)
        futures, self.futures = self.futures, []
        for future in futures:
            if not future.done():
                self.futures.append(future)
                continue
            error = future.exception()
            expected = error is None or isinstance(error, (LeaseLost, SessionBusy)) or str(error) == "a bug"
            if not expected:
                raise error
        self.look()

    def at(self, who, id_="s"):
        """Choose a process, with this session open in it."""
        process = self.processes[who % len(self.processes)]
        process.session(id_)
        return process

    def new_prompt(self, lane):
        self.prompts.append(f"{lane} {len(self.prompts)}")
        return self.prompts[-1]

    # What a program does

    @rule(who=st.integers(0, 1), turns=script, key=st.booleans(), limit=some, which=st.integers(0, 9))
    def ask(self, who, turns, key, limit, which):
        id_ = self.ids[which % len(self.ids)]
        process = self.at(who, id_)
        content = self.new_prompt("ask")
        process.model.turns = turns
        self.do(process.ask, id_, content, f"key of {content}" if key else None, limit)

    @precondition(lambda self: any(key.startswith("key of ask") for key in self.world.log("s").accepted))
    @rule(who=st.integers(0, 1), which=st.integers(0, 9), limit=some, other=st.booleans())
    def ask_again(self, who, which, limit, other):
        accepted = [item for item in self.world.log("s").accepted.items() if item[0].startswith("key of ask")]
        key, content = accepted[which % len(accepted)]
        if not other:
            self.do(self.at(who).ask, "s", content, key, limit)
            return
        self.do(self.refused, self.at(who), content, key)

    async def refused(self, process, content, key):
        with pytest.raises((ConflictError, LeaseLost, SessionBusy)):
            await process.session("s").ask(f"not {content}", client_key=key)

    @rule(who=st.integers(0, 1), limit=some)
    def read_on(self, who, limit):
        process = self.at(who)
        reply, _ = process.replies.get("s", (None, None))
        if reply is not None and not reply.driven:
            self.do(process.read, "s", limit)

    @rule(who=st.integers(0, 1), turns=script, limit=some)
    def send(self, who, turns, limit):
        process = self.at(who)
        process.model.turns = turns
        self.do(process.session("s").send, self.new_prompt("send"))
        if not process.receiving:
            self.do(process.receive, limit)

    @rule(who=st.integers(0, 1), follow_up=st.booleans())
    def queue(self, who, follow_up):
        session = self.at(who).session("s")
        lane = "follow_up" if follow_up else "steer"
        self.do(getattr(session, lane), self.new_prompt(lane))

    @rule(who=st.integers(0, 1))
    def cancel(self, who):
        self.do(self.at(who).cancel, "s")

    @rule(who=st.integers(0, 1), which=st.integers(0, 2), how=st.sampled_from(["approve", "edit", "reject"]))
    def decide(self, who, which, how):
        process = self.at(who)
        waiting = self.portal.call(process.sessions["s"].pending)
        if waiting:
            chosen = waiting[which % len(waiting)].id
            self.decided.append(chosen)
            self.do(process.decide, chosen, how)

    @precondition(lambda self: self.decided)
    @rule(who=st.integers(0, 1), which=st.integers(0, 9), how=st.sampled_from(["approve", "edit", "reject"]))
    def decide_again(self, who, which, how):
        self.do(self.at(who).decide, self.decided[which % len(self.decided)], how)

    @rule(who=st.integers(0, 1), turns=script, limit=some)
    def resume(self, who, turns, limit):
        process = self.at(who)
        process.model.turns = turns
        self.do(process.resume, limit)

    @rule(who=st.integers(0, 1))
    def let_through(self, who):
        self.portal.call(self.at(who).gate.open)
        self.settle()

    @rule(at=st.integers(0, 30))
    def fork(self, at):
        if rows := self.rows("s"):
            at = 1 + at % len(rows)
            new = f"fork {len(self.ids)}"
            self.do(partial(self.at(0).session("s").fork, new, at=at))
            self.ids.append(new)
            self.world.log(new).left_open = True
            self.world.log(new).crashed = self.world.log("s").crashed
            assert [row.id for row in self.rows(new)] == [row.id for row in rows[:at]]

    @rule()
    def delete(self):
        if len(self.ids) > 1:
            self.do(self.conflict)
            return
        self.do(self.erase)

    async def erase(self):
        await self.processes[0].runtime.store.delete("s")
        self.world.log("s").forget()

    async def conflict(self):
        with pytest.raises(ConflictError):
            await self.processes[0].runtime.store.delete("s")

    # What happens to it

    @rule(who=st.integers(0, 1), turns=script, points=st.integers(1, 40), limit=some)
    def killed_while_it_answers(self, who, turns, points, limit):
        process = self.at(who)
        process.kill_after(points)
        self.ask(who, turns, True, limit, 0)
        self.replace_world(process.image or self.world.killed())

    @rule(points=st.integers(1, 10), who=st.integers(0, 1))
    def killed_while_it_cancels(self, points, who):
        process = self.at(who)
        process.kill_after(points)
        self.cancel(who)
        self.replace_world(process.image or self.world.killed())

    def replace_world(self, world):
        old, self.world = self.processes, world
        self.processes = []
        for process in old:
            process.close()
        self.start()
        self.settle()

    @precondition(lambda self: len(self.processes) == 1)
    @rule()
    def second_process(self):
        self.start()
        self.look()

    @precondition(lambda self: len(self.processes) == 2)
    @rule(who=st.integers(0, 1))
    def leave(self, who):
        self.processes.pop(who).close()
        self.settle()

    # What must hold

    def rows(self, id_):
        """Read a session where it runs, if it does: what waits there for its lag is not in the file yet."""
        holders = [process for process in self.processes if process.number == self.world.log(id_).holder]
        store = [*holders, *self.processes][0].runtime.store

        async def read():
            return fold([fragment async for fragment in store.read(id_)])

        return self.portal.call(read)

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
            inbox=self.portal.call(self.processes[0].runtime.store.inbox, id_),
            requests=requests([*rows, Message.user("And?")]),
            before=log.before,
            effects=self.world.effects(id_, {row.id for row in rows}),
            shown=log.shown,
            writes=log.writes,
            accepted=log.accepted,
            cancels=log.cancels,
            gone=log.gone,
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
            self.leave(1)
        self.replace_world(self.world.killed())
        for id_ in self.ids:
            self.do(self.at(0, id_).ask, id_, self.new_prompt("ask"), None, 1_000)
            assert self.world.log(id_).shown[-1].ended
            left = self.portal.call(self.processes[0].runtime.store.inbox, id_)
            assert not left, (left, self.rows(id_))
        assert not self.futures


class LifeInMemory(Life):
    """The same without a file, on the other event loop."""

    backend = "trio"
    in_file = False


THOROUGH = settings.get_current_profile_name() == "thorough"
EXAMPLES = settings(
    max_examples=1_000 if THOROUGH else 40,
    stateful_step_count=40 if THOROUGH else 20,
    derandomize=not THOROUGH,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestInAFile = pytest.mark.timeout(3_600 if THOROUGH else 300)(Life.TestCase)
TestInMemory = pytest.mark.timeout(3_600 if THOROUGH else 300)(LifeInMemory.TestCase)
TestInAFile.settings = TestInMemory.settings = EXAMPLES
