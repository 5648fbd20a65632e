"""Processes of a world: a runtime, its sessions, a model that improvises, and tools that write down what they do."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress

from anyio import EndOfStream, Event

from streamagent import Agent, Pipeline, Runtime, persist, tool_dispatch
from streamagent.approvals import Verdict
from streamagent.calls import ToolSpec
from streamagent.errors import ApprovalGone, ApprovalNotFound, ConflictError, LeaseLost, SessionBusy, ToolError
from streamagent.testing.evidence import Effect, Shown
from tests.improviser import Improviser
from tests.world import World

MAX_TURNS = 4
STREAMED = frozenset({"streams", "pours"})
RETRY_SAFE = frozenset({"repeats", "pours", "lingers", "looks"})
GATED = frozenset({"gated", "looks"})
TOOLS = ("returns", "raises", "streams", "waits", "gated", "unknown", *sorted(RETRY_SAFE))
LEASE = 3_600.0  # seconds: no time passes by itself
TOO_LATE = (ConflictError, ApprovalGone, ApprovalNotFound)
VERDICTS = {
    "approve": {},
    "edit": {"args": {"edited": True}},
    "always": {"always": {}},
    "always when edited": {"always": {"edited": True}},
    "reject": {"approve": False},
}


class Gate:
    """What slow models and tools wait at; each opening lets all through that wait."""

    def __init__(self) -> None:
        self._event = Event()

    async def wait(self) -> None:
        """Wait for the next opening."""
        await self._event.wait()

    def open(self) -> None:
        """Let all through that wait."""
        self._event.set()
        self._event = Event()


class Deed:
    """A tool that writes down what it does, in the log of the world that it began in."""

    timeout = None

    def __init__(self, name: str, world: World, gate: Gate) -> None:
        self.spec = ToolSpec(name=name, description=f"Does {name}.", parameters={"type": "object"})
        self.requires_approval = name in GATED
        self.retry_safe = name in RETRY_SAFE
        self._world = world
        self._gate = gate

    async def run(self, arguments, context):
        session, _, call = context.idempotency_key.rpartition(":")
        log = self._world.log(session)
        revoked = frozenset(log.revoked)
        effect = Effect(call=call, tool=self.spec.name, args=dict(arguments), session=session, revoked=revoked)
        log.begin(effect, context.attempt, retry_safe=self.retry_safe)
        if self.spec.name in STREAMED:
            return self._pieces(effect)
        try:
            if self.spec.name in ("waits", "lingers"):
                await self._gate.wait()
            if self.spec.name == "raises":
                raise ToolError("no")
        except ToolError:
            effect.outcome = "raised"
            raise
        except BaseException:
            effect.outcome = "cancelled"
            raise
        effect.outcome = "returned"
        return f"{self.spec.name} did it"

    async def _pieces(self, effect: Effect) -> AsyncIterator[str]:
        for piece in ("a", "b", "c"):
            yield piece
        effect.outcome = "returned"


class Process:
    """A runtime in a world, its sessions, and what a program does in it.

    Args:
        number: Its name.
        world: Where it lives.
        portal: To the event loop.
        lag_ms: Of `persist`.
    """

    def __init__(self, number, world, portal, lag_ms):
        self.number = number
        self.world = world
        self.countdown = 0
        self.image = None
        self.portal = portal
        self.gate = portal.call(Gate)
        self.model = Improviser(self.gate)
        tools = [Deed(name, world, self.gate) for name in TOOLS if name != "unknown"]
        pipeline = Pipeline(reply=[tool_dispatch(tools), persist(lag_ms=lag_ms)])
        self.agent = Agent(self.model, tools=tools, pipeline=pipeline, max_turns=MAX_TURNS)
        self.runtime = Runtime(store=world.store(number, self._point), lease=LEASE)
        self.sessions = {}
        self.replies = {}
        self.heard = Shown()
        self.receiving = False
        self.futures = []
        self.cancels = []
        self._stack = ExitStack()
        self._stack.enter_context(portal.wrap_async_context_manager(self.runtime))

    @property
    def owner(self):
        """Its name among those who hold sessions."""
        return self.runtime.holding.owner.id

    def wake(self):
        """Have it notice that a lease's time has passed, when it looks next."""
        if self.runtime._watch is not None:
            self.runtime._watch._beat = -math.inf

    def session(self, id_):
        """Open a session, once."""
        if id_ not in self.sessions:
            opened = self.portal.wrap_async_context_manager(self.agent.session(id_, runtime=self.runtime))
            self.sessions[id_] = self._stack.enter_context(opened)
        return self.sessions[id_]

    def begin(self, function, *args):
        """Begin something in the event loop."""
        self.futures.append(self.portal.start_task_soon(function, *args))
        return self.futures[-1]

    def collect(self):
        """Raise what failed of that, and must not."""
        over = [future for future in self.futures if future.done()]
        self.futures = [future for future in self.futures if not future.done()]
        self.cancels = [future for future in self.cancels if not future.done()]
        errors = [None if future.cancelled() else future.exception() for future in over]
        for error in errors:
            if not (error is None or isinstance(error, LeaseLost | SessionBusy) or str(error) == "a bug"):
                raise error

    def close(self):
        """Leave the sessions and the runtime; whoever waits for another process's run gives up before."""
        self.countdown = 0  # the image of its world is made, if it was wanted
        for future in self.cancels:
            future.cancel()
        self.portal.call(self.world.activity.quiet)
        with suppress(LeaseLost):
            self._stack.close()
        self.portal.call(self.world.activity.quiet)
        self.collect()
        held = [session for session, log in self.world.logs.items() if log.holder == self.number]
        assert not held, f"left, and not given back: {held}"
        assert self.owner not in self.world.alive
        assert not self.futures, "somebody waits for a runtime that was left"

    async def ask(self, id_, prompt, key, limit):
        """Ask, and read a number of messages."""
        shown = Shown(key=key, prompt=prompt if isinstance(prompt, str) else prompt[0])
        self.world.log(id_).shown.append(shown)
        self.replies[id_] = self.sessions[id_].ask(prompt, client_key=key), shown
        await self.read(id_, limit)

    async def send(self, prompt):
        """Send, which cuts a reply that was left in the middle; nobody reads on in it."""
        reply, _ = self.replies.get("s", (None, None))
        if reply is not None and not (reply.driven or reply.done):
            del self.replies["s"]
        await self.sessions["s"].send(prompt)

    async def resume(self, limit):
        """Go on with what was decided, or what waits."""
        shown = Shown()
        self.world.log("s").shown.append(shown)
        self.replies["s"] = self.sessions["s"].resume(), shown
        await self.read("s", limit)

    async def decide(self, approval, how):
        """Decide about a call; when that was done before, or is too late, nothing comes of it."""
        with suppress(*TOO_LATE):
            await self.sessions["s"].decide(Verdict(approval=approval, **VERDICTS[how]))

    async def revoke(self, which):
        """End a grant."""
        if found := await self.sessions["s"].grants():
            grant = found[which % len(found)].id
            with suppress(*TOO_LATE):
                await self.sessions["s"].revoke(grant)
                self.world.log("s").revoked.add(grant)

    async def read(self, id_, limit):
        """Read on."""
        reply, shown = self.replies[id_]
        for _ in range(limit):
            try:
                shown.take(await anext(reply))
            except StopAsyncIteration:
                # One that was cut while it showed what is stored, or what others asked before, has no end of its own.
                elsewhere = reply._run is None or shown.prompt not in shown.texts.values()
                shown.ended = reply._cause is None or not elsewhere
                return
            except (LeaseLost, SessionBusy):
                log = self.world.log(id_)
                if shown.prompt and shown.prompt not in log.accepted.values():
                    log.refused.add(shown.prompt)
                del self.replies[id_]
                raise

    async def receive(self, limit):
        """Receive a number of messages of the session's duplex side."""
        shown = self.world.log("s").shown
        if not any(one is self.heard for one in shown):
            shown.append(self.heard)
        self.receiving = True
        try:
            with suppress(EndOfStream):
                for _ in range(limit):
                    self.heard.take(await self.sessions["s"].receive())
        finally:
            self.receiving = False

    async def cancel(self, id_):
        """Cancel, and note what was written until then."""
        log, fence = self.world.log(id_), self._fence(id_)
        assert await self.sessions[id_].cancel()
        if fence is not None:
            log.cancels.append((fence, len(log.writes)))

    def _fence(self, id_):
        """Return the fence of the run that a cancel cuts: the reply's of this process, or of another one that began."""
        active, log = self.runtime.active.get(id_), self.world.log(id_)
        if active is not None:
            return None if active._run is None else active._run.fence
        begun = log.holder is not None and any(write.fence == log.fence for write in log.writes)
        return log.fence if begun else None

    def kill_after(self, points):
        """Have the world as it is at a coming point of the store kept."""
        self.countdown = points

    def _point(self):
        if self.countdown:
            self.countdown -= 1
            if not self.countdown:
                self.image = self.world.killed()
