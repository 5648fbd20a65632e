"""`Run`: one way from the inbox to the final answer; `turns`: the head of its chain, the agent loop."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .approvals import refuse_strange
from .attempts import latest_pages
from .calls import Child, Output
from .errors import ConfigError
from .hooks import lane_of
from .inbox import Inbox
from .lineage import Lineage
from .message import Message, each
from .pipeline import BareRun
from .plan import Plan
from .protocols import Stage, Store
from .records import NOTHING, CallRecord, Unfinished
from .resume import Cut
from .settle import scrub
from .talk import PagedStore, Pages, in_pages
from .tasks import RunTasks
from .turn import Turn

_PAUSED = Message.stop("tool_calls")  # what a run that goes on after a pause takes for the last turn's stop


@dataclass(slots=True)
class Run:
    """A run as its stages see it (`protocols.RunContext`), and what its head needs.

    `prompt` is the id of what it was begun for, `asked` that of the last message that was admitted, `taken` has those
    of all. `number` counts the turns that are over, and after `last_turn` of them it ends; `again`, `decided` and
    `bounds` are as in `protocols.RunContext`. `left` is how it found the session: with calls that wait for an approval,
    if the last run paused; `resumed` that some were decided. `turn` is the last one, `stop` that of the last that is
    over; `shrunk`, that one is taken once more because its context was too long, and `retry`, that this comes next.
    `begun`, that it is not looking into the inbox now; `pressed` is the id of the message for which it is to be cut, or
    empty, and `interrupted`, when it goes on after that, of the one for which it was. `lineage` is its place among the
    runs of sub-agents; `starter` starts one. `cut` is the run that goes on with this one after a crash, and `started`
    what is known of its calls. `first` is the sequence of its first row, also before a
    pause; `context`, what the next turn is given instead of the stored messages. `leaving`, that another process goes
    on with it at the next border; `left_off`, that it came to one.
    `waiting` is what its beginning, or the border, finds in the inbox; `behind_row`, the sequence of the last row that
    is not its own.
    """

    session: str
    store: Store
    fence: int
    plan: Plan
    tasks: RunTasks
    deadline: float = math.inf
    outcomes: dict[str, Message] = field(default_factory=dict)
    prompt: str | None = None
    again: Message | None = None
    asked: str | None = None
    taken: set[str] = field(default_factory=set)  # as many as the run has prompts and steering messages
    number: int = 0
    last_turn: int = 0
    pressed: str | None = None
    interrupted: str | None = None
    begun: bool = False
    turn: Turn | None = None
    shrunk: bool = False
    retry: bool = False
    lineage: Lineage = field(default_factory=Lineage)
    starter: Callable[[Run, Child], Awaitable[Output]] | None = None
    bounds: list[Stage] = field(default_factory=list)
    decided: dict[str, Message] = field(default_factory=dict)
    started: Mapping[str, CallRecord] = field(default_factory=dict)
    cut: Cut | None = None
    left: Unfinished = NOTHING
    resumed: bool = False
    context: Sequence[Message] | None = None
    leaving: bool = False
    left_off: bool = False
    first: int | None = None
    since: int | None = None
    waiting: Sequence[Message] | None = None
    behind_row: int = 0
    stop: Message = _PAUSED
    inbox: Inbox = field(init=False)

    def __post_init__(self) -> None:
        plan = self.plan
        if self.cut is not None:
            self._take_up(self.cut)
        elif self.left.approvals:
            self._go_on(((self.left.last and self.left.last.query) or {}).get("run") or {})
        self.inbox = Inbox(
            store=self.store,
            session=self.session,
            fence=self.fence,
            hooks=plan.hooks,
            steering=plan.steering,
            follow_ups=plan.follow_ups,
        )

    def _go_on(self, before: Mapping[str, Any]) -> None:
        """Take over what a run that paused had used up; after a crash nobody knows."""
        self.number = before.get("turns", 0)
        self.last_turn = before.get("last_turn", self.plan.max_turns)
        self.since = before.get("since")
        self.first = None if self.since is None else self.since + 1

    def _take_up(self, cut: Cut) -> None:
        """Take over what a run had used up whose process died."""
        self.number, self.last_turn = cut.turns, cut.granted + self.plan.max_turns
        self.first, self.since = cut.first, cut.first - 1
        self.prompt, self.shrunk = cut.prompt, cut.shrunk
        self.asked = None if cut.asked is None else cut.asked.id
        self.resumed = True

    def recall(self) -> list[Message]:
        """Give the calls that nobody ran to their end, or what was decided about them, to pass once more."""
        if (cut := self.cut) is None:
            return []
        self.decided.update((call.id, call) for call in self.left.cut)
        return [cut.decisions.get(call.id, call) for call in self.left.cut]

    async def begin(self) -> list[Message]:
        """Admit what it is begun for, or goes on with."""
        found, self.waiting = self.waiting, None
        if self.cut is None:
            return await (self.inbox.first(found) if self.interrupted is None else self.inbox.steered("all"))
        prompted = self.cut.asked is not None and lane_of(self.cut.asked) != "steer"
        return await self.inbox.steered() if prompted else []

    @property
    def attempts(self) -> int:
        """How often the next turn was attempted before."""
        return 0 if self.cut is None or self.turn is not None else self.cut.attempt

    @property
    def used_up(self) -> bool:
        """It goes on after an interruption, and has no turn left; what was said stays in the inbox."""
        return self.interrupted is not None and self.number >= self.last_turn

    @property
    def goes_on(self) -> bool:
        """It has something to do without a prompt, too."""
        return (bool(self.interrupted) and not self.used_up) or self.cut is not None

    @property
    def behind(self) -> Unfinished | None:
        """How the calls stand, when it begins behind a turn."""
        cut = self.cut
        if cut is None:
            return self.left if self.left.approvals else None
        return None if (cut.due or cut.turn is not None) and not self.left.cut else self.left

    @property
    def pause(self) -> Mapping[str, Any]:
        """What the run that goes on has to know."""
        return {"turns": self.number, "last_turn": self.last_turn, "since": (self.first or 1) - 1}

    def take(self, prompts: Sequence[Message]) -> None:
        """Take note of what is admitted; only a follow-up has all turns again."""
        for prompt in prompts:
            self.asked = prompt.id
            self.taken.add(prompt.id)
            self.prompt = self.prompt or prompt.id
            self.first = self.first or prompt.sequence
            if not self.number or lane_of(prompt) == "follow_up":  # steering must not keep a run alive for ever
                self.last_turn = self.number + self.plan.max_turns
                self.shrunk = False

    def going_on(self, tasks: RunTasks) -> Run:
        """Make what goes on after an interruption: the same run with new tasks, whose stages begin anew."""
        fresh: dict[str, Any] = {"outcomes": {}, "decided": {}, "bounds": [], "again": None, "turn": None}
        fresh |= {"interrupted": self.pressed or "", "pressed": None, "begun": False}
        fresh |= {"cut": None, "started": {}}
        # An answer that was complete counts, also when its calls were cut; behind the last word begins something new.
        stop = None if self.turn is None or self.turn.stop is self.stop else self.turn.stop
        counts = stop is not None and not stop.is_final and not (self.turn and self.turn.retried)
        fresh["number"] = self.number + counts
        fresh["since"] = None if self.first is None else self.first - 1
        return replace(self, tasks=tasks, left=NOTHING, **fresh)

    @property
    def hurries(self) -> bool:
        """It is to be cut for a message that it has not taken."""
        return self.begun and self.pressed is not None and self.pressed not in self.taken

    async def hurried(self, admitted: list[Message]) -> list[Message]:
        """Add what has to be said at once, if it came while these were admitted."""
        if not self.pressed or self.pressed in self.taken | {message.id for message in admitted}:
            return admitted
        return [*admitted, *await self.inbox.steered("all")]

    @property
    def cut_usage(self) -> Mapping[str, Any] | None:
        """Tokens of the answer that is under way."""
        return None if self.turn is None or self.turn.stop is not None else self.turn.usage

    @property
    def last_words(self) -> Mapping[str, Any]:
        """What its `stop` says besides when it is cut: what the answer took that was under way, or that none was."""
        if self.turn is None or self.cut_usage is None:
            return {"usage": {"total_tokens": 0}}
        return {"model": self.turn.model, "usage": self.cut_usage}

    async def look(self) -> Unfinished:
        """Look how the calls of the last turn stand, and into the inbox."""
        standing = await self.store.standing(self.session)
        self.waiting = standing.inbox
        return standing.left

    async def decide(self, left: Unfinished | None) -> list[Message]:
        """Admit what was decided about calls that wait.

        Raises:
            ConfigError: They are of tools that this agent does not have; the decisions go on waiting.
        """
        if left is None:
            return []
        refuse_strange(left.approvals, self.plan.pipeline.runs)
        decisions = await self.inbox.decided() if left.approvals else []
        about = {(decision.query or {}).get("call") for decision in decisions}
        self.decided.update((call.id, call) for call in left.calls if call.id in about)
        self.resumed |= bool(decisions)
        return decisions

    def rows(self) -> Callable[[int | None, bool], Pages]:
        """Tell what reads what the next turn is about: the stored rows, or what a hook has given.

        Returns:
            A function of the last sequence and of whether talks are taken, too.
        """
        given, self.context = self.context, None

        def read(until: int | None, talks: bool) -> Pages:
            return in_pages(each(given)) if given is not None else latest_pages(self._stored(until, talks=talks))

        return read

    def _stored(self, until: int | None, *, talks: bool) -> Pages:
        if isinstance(self.store, PagedStore):
            return self.store.pages(self.session, until=until, talks=talks)
        return in_pages(self.store.read(self.session, until=until))

    async def start_call(self, call: str) -> int:
        """Commit that a call's tool is about to run."""
        return await self.store.start_call(self.session, call, fence=self.fence)

    async def finish_call(self, call: str, result: Message) -> None:
        """Commit what came of a call, as it would pass the stages before the store."""
        bare = BareRun(self.tasks, self.session, opened=(self.store, self.fence))
        outcome = (await scrub({call: result}, self.plan.pipeline.inner, bare))[call]
        await self.store.finish_call(self.session, call, outcome, fence=self.fence)

    async def start_child(self, child: Child) -> Output:
        """Let a sub-agent answer; see `ToolContext.start`."""
        if self.starter is None:
            raise ConfigError(f"call {child.call} wants a sub-agent, and this run has no runtime")
        return await self.starter(self, child)
