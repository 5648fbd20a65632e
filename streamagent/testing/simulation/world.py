"""The world of a simulation: one store, what was seen of it, and processes that may be killed at any point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast

from anyio import current_time, sleep, sleep_until
from anyio.lowlevel import checkpoint

from streamagent.agent import Agent
from streamagent.calls import Tool
from streamagent.errors import StoreError, StoreFull, ToolError
from streamagent.message import Message, afold
from streamagent.protocols import Model, Store
from streamagent.testing.checking import check_session
from streamagent.testing.effects import EffectLog
from streamagent.testing.evidence import ASIDE, Shown, Write
from streamagent.testing.points import FaultPoints
from streamagent.testing.watched import FaultyStore, watched_model, watched_pipeline

from .model import LintedModel

SESSION = "s"
FAULTS = ("crash", "freeze", "store", "tool", "model", "leave", "cancel", "steer", "second")
REACH = {"crash": 80, "freeze": 80, "store": 24, "tool": 6, "model": 24}  # points within which a fault comes, or not
SOON = 12  # points within which a process dies, or not, that goes on where another one died
AGAIN = 3  # deaths in a row after which it is as before
LEASE = 15.0  # virtual seconds
LONGEST = {"tool": 30.0, "model": 5.0, "store": 0.05}  # virtual seconds that something may take


class Killed(StoreError):
    """The process is gone: nothing that it still does has an effect, and its own code unwinds as from a dead store."""


class InjectedFull(StoreFull):
    """The store refuses a write, as the seed wants."""


class InjectedToolError(ToolError):
    """A tool fails, as the seed wants."""


class InjectedBug(Exception):
    """A model raises, as the seed wants."""


class World:
    """What all processes share.

    Args:
        agent: Whose stages, tools and limits are used.
        model: What answers in its place.
        store: Where all processes keep the session; it is open.
        dice: What decides.
        faults: Which kinds of faults there are, of `FAULTS`.
        linted: Each request is checked (I4); else those for the rows at its end alone.
    """

    def __init__(  # noqa: PLR0913 - made by the simulation alone
        self, agent: Agent, model: Model, store: Store, dice: Random, faults: Sequence[str], *, linted: bool = True
    ) -> None:
        self.agent = agent
        self.model = model
        self.dice = dice
        self.faults = faults
        self.store = store
        self.linted = linted
        self.log = EffectLog()
        self.points: list[str] = []
        self.done: list[str] = []  # the faults that came
        self.shown: list[tuple[Process, Shown]] = []
        self.writes: list[Write] = []
        self.cancels: list[tuple[int, int]] = []
        self.accepted: dict[str, str] = {}
        self.before: list[Message] = []
        self.holder: Process | None = None
        self.deaths = 0  # in a row
        self.crashed = False
        self.prompts = 0
        self.cuts = 0  # cancels and interruptions

    def wants(self, fault: str, chance: float) -> bool:
        """Throw the dice for a kind of fault, if there is that kind."""
        return fault in self.faults and self.dice.random() < chance

    def new_prompt(self, text: str) -> str:
        """Make a prompt as none was before."""
        self.prompts += 1
        return f"{text} ({self.prompts})"

    def lose(self, process: Process) -> None:
        """Note that a process lost its lease or its life: what its viewers saw within the lag may be lost."""
        self.crashed = True
        for viewer, shown in self.shown:
            shown.behind |= viewer is process

    async def look(self) -> None:
        """Keep the rows as they are now: what is final now stays so."""
        self.before = await afold(self.store.read(SESSION))

    async def check(self) -> list[Message]:
        """Check all invariants of the session, which is at rest, and those of its sub-agents."""
        tools = self.agent.tools
        async for info in self.store.sessions():
            left = await self.store.unfinished(info.id)
            if left.at_rest and (known := await self.store.calls(info.id)):
                raise AssertionError(f"I5: at rest, and the ledger of {info.id!r} still has {known}")
            if info.id != SESSION:
                await check_session(self.store, info.id, crashed=self.crashed, at_rest=True)
        return await check_session(
            self.store,
            SESSION,
            before=self.before,
            effects=self.log.of(SESSION),
            shown=[shown for _, shown in self.shown],
            writes=self.writes,
            accepted=self.accepted,
            cancels=self.cancels,
            crashed=self.crashed,
            streamed=frozenset(self.log.streamed),
            gated=frozenset(tool.spec.name for tool in tools if getattr(tool, "requires_approval", False) is True),
            retry_safe=frozenset(tool.spec.name for tool in tools if getattr(tool, "retry_safe", False)),
            reconciled=frozenset(tool.spec.name for tool in tools if getattr(tool, "reconcile", None) is not None),
            max_turns=self.agent.plan.max_turns,
        )


class Process(FaultPoints):
    """One instance: a plan of faults of its own, and the store, the model and the tools as it has them.

    Args:
        world: Where it lives.
        number: Its name.
        harmless: No fault comes in it.
    """

    def __init__(self, world: World, number: int, *, harmless: bool = False) -> None:
        super().__init__()
        self.world = world
        self.id = number
        self.alive = True
        self.owner = ""
        self.asleep_until = 0.0
        reach = {kind: reach for kind, reach in REACH.items() if kind in world.faults and not harmless}
        if 0 < world.deaths <= AGAIN:
            reach |= {"crash": SOON} if "crash" in reach else {}
        left = {kind: world.dice.randrange(2 * reach) for kind, reach in reach.items()}
        self._countdown = {kind: points for kind, points in left.items() if points < reach[kind]}
        self.store = cast("Store", _WitnessedStore(world.store, self))
        model = LintedModel(world.model, lambda: world.holder is not self) if world.linted else world.model
        self.plan = replace(
            world.agent.plan,
            model=watched_model(model, self),
            pipeline=watched_pipeline(world.agent.pipeline, self, self._recorded),
        )

    def point(self, name: str) -> None:
        """Pass a point; here the process may be killed or stopped for a while, or something in it may fail."""
        self._living()
        super().point(name)
        self.world.points.append(f"{self.id}: {name}")
        kind = name.partition(" ")[0].partition(".")[0]
        for fault in ("crash", "freeze", kind):
            if fault in self._countdown:
                self._countdown[fault] -= 1
                if self._countdown[fault] < 0:
                    del self._countdown[fault]
                    self._come(fault, name)

    async def pause(self, name: str) -> None:
        """Take as long as the seed wants."""
        self._living()
        longest = LONGEST[name.partition(" ")[0].partition(".")[0]]
        if self.world.dice.random() < 0.5:  # noqa: PLR2004 - as often it takes no time
            await checkpoint()
        else:
            await sleep(self.world.dice.random() * longest)
        if current_time() < self.asleep_until:
            await self.awake()
        self._living()

    async def awake(self) -> None:
        """Return when the process is not stopped: whatever it does then may come too late."""
        await sleep_until(self.asleep_until)
        self._living()

    def _living(self) -> None:
        if not self.alive:
            raise Killed

    def _come(self, fault: str, name: str) -> None:
        self.world.done.append(f"{fault} in process {self.id} at {name}")
        if fault == "crash":
            self.alive = False
            self.world.deaths += 1
            self.world.lose(self)
            raise Killed
        self.world.crashed |= fault in ("freeze", "store")  # what is not settled looks to the next run as after a crash
        if fault == "freeze":
            self.asleep_until = current_time() + LEASE * (1 + 3 * self.world.dice.random())
            return
        raise {"store": InjectedFull, "tool": InjectedToolError, "model": InjectedBug}[fault](f"at {name}")

    def _recorded(self, tool: Tool) -> Tool:
        return self.world.log.recorded(tool, lambda: self.alive)


class _WitnessedStore(FaultyStore):
    """The shared store as one process has it; what it took is written down."""

    def __init__(self, store: Store, process: Process) -> None:
        super().__init__(store, process)
        self._process = process

    async def _write(self, name: str, *args: Any, **options: Any) -> Any:
        await self._process.awake()
        return await super()._write(name, *args, **options)

    async def _read(self, name: str, *args: Any, **options: Any) -> Any:
        await self._process.awake()
        return await super()._read(name, *args, **options)

    def wrote(self, name: str, args: Sequence[Any], options: Mapping[str, Any], result: Any) -> None:
        """Write down who wrote what, and which prompts were accepted."""
        world, process = self._process.world, self._process
        if args[:1] != (SESSION,):
            return
        if name == "acquire":
            if world.holder is not None and world.holder is not process:
                world.lose(world.holder)
            world.holder = process
        elif name == "release" and world.holder is process:
            world.holder = None
        elif name in ("write", "write_soon", "admit"):
            rows = result if name == "admit" else args[1] if name == "write" else [args[1]]
            world.writes += [Write(owner=process.id, fence=options["fence"], id=row.id) for row in rows]
        elif name == "enqueue" and args[1].type not in ASIDE:
            world.accepted[options.get("client_key") or args[1].content] = args[1].content
