"""What the programs of a simulation do: ask, serve, leave, steer, decide, go on; and what must come of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count

import anyio
from anyio import create_task_group, fail_after, sleep

from streamagent.approvals import Verdict
from streamagent.cancellation import raise_single
from streamagent.driver import RunReply
from streamagent.errors import ApprovalGone, ApprovalNotFound, ConflictError, LeaseLost, SessionBusy, StoreBusy
from streamagent.message import Message
from streamagent.runtime import Runtime
from streamagent.session import Session
from streamagent.testing.evidence import Shown
from streamagent.testing.points import leaves

from .world import LEASE, SESSION, InjectedBug, InjectedFull, Killed, Process, World

REFUSED = (LeaseLost, SessionBusy, ConflictError, ApprovalGone, ApprovalNotFound)  # the session is another one's now
EXPECTED = (*REFUSED, Killed, StoreBusy, InjectedFull, InjectedBug)
DAY = 86_400.0  # virtual seconds in which everything ends: far more than all waits of one life may take
POLL = 5.0  # virtual seconds between two looks for cancels from elsewhere
ROUNDS = 4  # actions of a process
LIVES = 12  # processes of a series, if each dies
DRAINS = 50  # rounds until everything that was accepted is answered
AWAY = 60.0  # virtual seconds after which a dead process's lease is tried again
ALL = 1_000_000

Action = Callable[[Sequence[str]], Awaitable[None]]


async def life(world: World, prompts: Sequence[str]) -> list[Message]:
    """Let processes come and go, then look whether all that was accepted is answered.

    Args:
        world: Where they live.
        prompts: What they ask.

    Returns:
        The rows.

    Raises:
        AssertionError: An invariant does not hold, or something waits for ever.
    """
    numbers = count(1)
    try:
        with fail_after(DAY):
            async with create_task_group() as tasks:
                tasks.start_soon(_series, world, prompts, numbers)
                if world.wants("second", 0.4):
                    world.done.append("a second process")
                    tasks.start_soon(_series, world, prompts, numbers)
            await _drain(world, Process(world, next(numbers), harmless=True), prompts)
    except TimeoutError as error:
        raise AssertionError(f"I9: something waits for ever; the last points were {world.points[-5:]}") from error
    return await world.check()


async def _series(world: World, prompts: Sequence[str], numbers: Iterator[int]) -> None:
    left = world.dice.randrange(1, 4)
    for _ in range(LIVES):
        process = Process(world, next(numbers))
        async with process_of(world, process) as client:
            await _work(world, client, prompts)
        await world.look()
        if process.alive:
            left -= 1
        else:
            await _after(world, process, Process(world, next(numbers), harmless=True), prompts)
        if not left:
            return


async def _work(world: World, client: Client, prompts: Sequence[str]) -> None:
    for number in range(world.dice.randrange(1, ROUNDS)):
        try:
            await (client.act(prompts) if number or not world.deaths else client.go_on(prompts))
        except SessionBusy:
            await sleep(LEASE * world.dice.random())
        except EXPECTED:
            pass  # as `process_of` says
        if not client.alive:
            return
        world.deaths = 0


async def _after(world: World, dead: Process, other: Process, prompts: Sequence[str]) -> None:
    """Let it be seen that a process has died, or time pass; meanwhile another one takes what users say."""
    if world.dice.random() < 0.5:  # noqa: PLR2004 - it was one of the same machine
        await world.store.retire(dead.owner)
    else:
        await sleep(2 * LEASE * world.dice.random())
    if world.dice.random() < 0.5:  # noqa: PLR2004
        async with process_of(world, other) as client:
            await client.say(prompts)


@asynccontextmanager
async def process_of(world: World, process: Process) -> AsyncIterator[Client]:
    """Run a process; its death, and what it was refused, end here."""
    try:
        async with (
            Runtime(store=process.store, poll=POLL, lease=LEASE) as runtime,
            runtime.session(SESSION, process.plan) as session,
        ):
            process.owner = runtime.holding.owner.id
            yield Client(process, runtime, session)
    except BaseException as error:
        cancelled = anyio.get_cancelled_exc_class()
        found = [*leaves(error)]
        died = not process.alive and not any(isinstance(one, cancelled) for one in found)
        if not (died or all(isinstance(one, EXPECTED) for one in found)):
            raise
    finally:
        if world.holder is process and process.alive:
            world.holder = None


async def _drain(world: World, process: Process, prompts: Sequence[str]) -> None:
    for _ in range(DRAINS):
        async with process_of(world, process) as client:
            if world.dice.random() < 0.5:  # noqa: PLR2004 - what was cut is gone on with, or over
                await client.resume(prompts)
            await client.ask(prompts)
            if not await world.store.inbox(SESSION):
                return
        await sleep(AWAY)  # whoever died holds the session until its time is over
    raise AssertionError(f"I9: {await world.store.inbox(SESSION)} wait when nothing disturbs them any more")


class Client:
    """What a program does in a process.

    Args:
        process: The process.
        runtime: What it runs.
        session: The session, open in it.
    """

    def __init__(self, process: Process, runtime: Runtime, session: Session) -> None:
        self._process = process
        self._world = process.world
        self._dice = process.world.dice
        self._runtime = runtime
        self._session = session

    @property
    def alive(self) -> bool:
        """Its process was not killed."""
        return self._process.alive

    async def act(self, prompts: Sequence[str]) -> None:
        """Do what the dice say."""
        actions = [self.ask] * 6 + [self.ask_again, self.follow_up, self.resume, self.serve]
        await self._do(actions, prompts)

    async def ask_until_done(self, prompt: str, key: str) -> None:
        """Ask, and approve what is asked about, until the answer is over."""
        await self._read(self._session.ask(prompt, client_key=key), Shown(key=key, prompt=prompt))
        while True:
            for approval in await self._session.pending():
                await self._session.approve(approval)
            await self.resume(())  # also what was decided before a death
            if not await self._session.pending():
                return

    async def go_on(self, prompts: Sequence[str]) -> None:
        """Do what one does when a process has died."""
        await self._do([self.resume, self.resume, self.ask_again, self.ask_again, self.serve, self.ask], prompts)

    async def say(self, prompts: Sequence[str]) -> None:
        """Say what waits until a run takes it."""
        if self._dice.random() < 0.5:  # noqa: PLR2004
            await self.follow_up(prompts)
        if self._world.wants("steer", 0.5):
            self._world.done.append(f"steered from process {self._process.id}")
            await self._session.steer(self._world.new_prompt("Wait,"))
        await self._verdicts()

    async def _do(self, actions: Sequence[Action], prompts: Sequence[str]) -> None:
        await self._dice.choice(actions)(prompts)
        while self._dice.random() < 0.7 and await self._session.pending():  # noqa: PLR2004
            await self.decide()

    async def ask(self, prompts: Sequence[str]) -> None:
        """Ask something new, and perhaps leave, cancel or steer meanwhile."""
        prompt = self._world.new_prompt(self._dice.choice(prompts))
        key = f"key of {prompt}" if self._dice.random() < 0.5 else None  # noqa: PLR2004
        await self._read(self._session.ask(prompt, client_key=key), Shown(key=key, prompt=prompt))

    async def ask_again(self, _: Sequence[str]) -> None:
        """Ask what was asked, with the same key."""
        keys = [key for key, content in self._world.accepted.items() if key == f"key of {content}"]
        if keys:
            key = self._dice.choice(keys)
            prompt = self._world.accepted[key]
            await self._read(self._session.ask(prompt, client_key=key), Shown(key=key, prompt=prompt))

    async def follow_up(self, prompts: Sequence[str]) -> None:
        """Leave a follow-up for the next run."""
        await self._session.follow_up(self._world.new_prompt(self._dice.choice(prompts)))

    async def decide(self) -> None:
        """Decide about each call that waits, and go on."""
        await self._verdicts()
        await self.resume(())

    async def _verdicts(self) -> None:
        for approval in await self._session.pending():
            verdict = Verdict(approval=approval.id, approve=self._dice.random() < 0.7)  # noqa: PLR2004
            with suppress(ConflictError, ApprovalGone, ApprovalNotFound):
                await self._session.decide(verdict)

    async def serve(self, prompts: Sequence[str]) -> None:
        """Send something, or nothing, and read until everything is answered."""
        async with self._runtime.session(SESSION, self._process.plan) as session:
            if self._dice.random() < 0.5:  # noqa: PLR2004
                await session.send(self._world.new_prompt(self._dice.choice(prompts)))
            await session.send_eof()
            await self._read(session, Shown())

    async def resume(self, _: Sequence[str]) -> None:
        """Go on with what waits."""
        await self._read(self._session.resume(), Shown())

    async def _read(self, reply: RunReply | Session, shown: Shown) -> None:
        world, dice = self._world, self._dice
        world.shown.append((self._process, shown))
        limit = dice.randrange(1, 12) if world.wants("leave", 0.2) else ALL
        try:
            async with create_task_group() as tasks:
                if world.wants("cancel", 0.15):
                    tasks.start_soon(self._later, self._cancel)
                if world.wants("steer", 0.2):
                    tasks.start_soon(self._later, self._steer)
                await self._follow(reply, shown, limit)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise_single(group)

    async def _follow(self, reply: RunReply | Session, shown: Shown, limit: int) -> None:
        seen, cuts = 0, self._world.cuts
        async for message in reply:
            if not self.alive:
                raise Killed
            shown.take(message)
            seen += 1
            if seen == limit:
                self._world.done.append(f"left process {self._process.id} after {seen} messages")
                await reply.aclose()
                return
        # What was committed in the moment of a cut is stored and perhaps not shown, but for the end of the answer.
        shown.ended = shown.prompt in shown.texts.values() and self._world.cuts == cuts

    async def _later(self, function: object) -> None:
        await sleep(self._dice.random() * 20)
        with suppress(*EXPECTED):
            await function()  # type: ignore[operator]

    async def _cancel(self) -> None:
        self._world.done.append(f"cancelled in process {self._process.id}")
        self._world.cuts += 1
        reply = self._runtime.active.get(SESSION)
        run = None if reply is None else reply.running
        if await self._session.cancel() and run is not None:
            self._world.cancels.append((run.fence, len(self._world.writes)))

    async def _steer(self) -> None:
        prompt = self._world.new_prompt("Wait,")
        self._world.done.append(f"steered in process {self._process.id}")
        interrupt = self._dice.random() < 0.5  # noqa: PLR2004
        self._world.cuts += interrupt
        await self._session.steer(prompt, interrupt=interrupt)
