"""What was seen of a session in the world of the state machine, by its store and by its tools."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from streamagent.message import Message
from streamagent.resume import CRASHES
from streamagent.stores._ledger import NOBODY
from streamagent.testing.evidence import Effect, Shown, Write, fact, told


@dataclass(slots=True, kw_only=True)
class Log:
    """What was seen of one session; see `invariants.Evidence`.

    Args:
        holder: The process that has the lease; `None` when it has ended, or given it back.
        owner: Whose lease it is, by the id of the process's owner, or one's that has vanished; or `NOBODY`'s.
        deaths: How many owners in a row died while they had it.
        refused: Prompts of which nothing may be stored: the session was another one's.
        unsealed: Calls of the answer that is under way.
        early: Calls whose tool began before their answer was complete, and may not run again.
        wrong: What must not be, as it was noticed.
        left_open: Whoever had it was killed, or it is a new fork: the next run finds what was left.
    """

    effects: list[Effect] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    accepted: dict[str, str] = field(default_factory=dict)
    cancels: list[tuple[int, int]] = field(default_factory=list)
    before: list[Message] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unsealed: set[str] = field(default_factory=set)
    early: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    holder: int | None = None
    owner: str | None = None
    deaths: int = 0
    fence: int = 0
    inherited: int = 0
    crashed: bool = False
    left_open: bool = False

    def copied(self) -> Log:
        """Make a log that the processes of this one do not write to; all its viewers have lost their process."""
        return Log(
            effects=[replace(effect) for effect in self.effects],
            shown=[
                replace(one, texts=dict(one.texts), closed=set(one.closed), lagged=set(one.lagged), behind=True)
                for one in self.shown
            ],
            writes=[*self.writes],
            accepted=dict(self.accepted),
            cancels=[*self.cancels],
            before=[*self.before],
            gone={*self.gone},
            revoked={*self.revoked},
            refused={*self.refused},
            unsealed={*self.unsealed},
            early={*self.early},
            wrong=[*self.wrong],
            owner=self.owner,
            deaths=self.deaths,
            fence=self.fence,
            inherited=self.inherited,
            crashed=True,
            left_open=True,
        )

    def forget(self) -> None:
        """The session was deleted: nothing of it is stored any more, and nothing that was seen binds what follows."""
        self.gone |= {write.id for write in self.writes}
        for seen in (self.effects, self.shown, self.writes, self.accepted, self.cancels, self.before, self.unsealed):
            seen.clear()
        self.holder, self.owner, self.deaths, self.left_open = None, None, 0, False

    def take(self, row: Message) -> None:
        """Note what is written, and whether it may be said."""
        if row.type == "tool_call":
            self.unsealed.add(row.id)
        elif row.type == "stop":
            self.unsealed.clear()
            given_up = (fact(row, "error") or {}).get("kind") == "poison"
            if given_up != (self.deaths >= CRASHES) and (given_up or fact(row, "cut") == "resumed"):
                self.wrong.append(f"after {self.deaths} deaths in a row: {told(row)}")

    def begin(self, effect: Effect, attempt: int, *, retry_safe: bool) -> None:
        """Note that a tool begins, and whether it may."""
        before = sum(earlier.call == effect.call for earlier in self.effects)
        if attempt <= before:
            self.wrong.append(f"attempt {attempt}, and {before} were before: {effect}")
        if effect.call in self.unsealed and not retry_safe:
            self.early.add(effect.call)
        self.effects.append(effect)

    def pass_on(self, number: int, owner: str | None, fence: int) -> None:
        """Note that a process has the session now."""
        self.deaths += bool(self.owner) and owner not in (None, self.owner)
        if self.holder not in (None, number):
            self.lose()
        self.holder, self.owner = (None if owner is None else number), owner
        self.fence, self.left_open = fence, False

    def give_back(self, fence: int, *, unfinished: bool) -> None:
        """Note that nobody has the session any more, unless another one took it before."""
        if fence == self.fence:
            self.holder, self.owner, self.left_open = None, NOBODY if unfinished else None, unfinished
            self.deaths *= unfinished

    def lose(self) -> None:
        """Another process has the session now: what the viewers of this one saw within the lag may be lost."""
        self.crashed = True
        for one in self.shown:
            one.behind = True
