"""Which sessions are kept, and for how long; and how one user's are erased.

Nothing here runs by itself: who keeps sessions decides when they go. Two things are always respected: a fork shares
rows of its parent, which therefore stays as long as the fork does and goes after it; and the sessions of sub-agents go
with the one that asked them, never by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from .errors import ConfigError, ConflictError, SessionBusy
from .lineage import askers
from .message import utc_now
from .protocols import Store
from .records import SessionInfo, check_id

Why = Literal["age", "count", "size", "user", "fork", "sub-agent"]
_ROUNDS = 10  # of erasing, while somebody still writes: each finds what the one before has missed


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which sessions are kept: those that pass each limit that is set.

    Args:
        max_age: How long a session is kept after it was written to last; a number is seconds.
        max_sessions: How many are kept, the latest written ones; sessions of sub-agents do not count.
        max_bytes: The most that one may hold of content of its own, its sub-agents' sessions included.
        prefix: Only sessions whose id begins so are looked at and counted: those of one agent, of one group of users.

    Raises:
        ConfigError: A limit is negative or of another type, or there is none.
    """

    max_age: timedelta | float | None = None
    max_sessions: int | None = None
    max_bytes: int | None = None
    prefix: str = ""

    def __post_init__(self) -> None:
        if self.max_age is self.max_sessions is self.max_bytes is None:
            raise ConfigError("a retention without a limit keeps everything; give max_age, max_sessions or max_bytes")
        for name in ("max_sessions", "max_bytes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise ConfigError(f"{name} is a whole number from 0, not {value!r:.80}")
        if self.age is not None and not 0 <= self.age < math.inf:
            raise ConfigError(f"max_age is a time from 0 s, not {self.max_age!r:.80}")
        if not isinstance(self.prefix, str):
            raise ConfigError(f"prefix is the beginning of an id, not {self.prefix!r:.80}")

    @property
    def age(self) -> float | None:
        """`max_age` in seconds."""
        if isinstance(self.max_age, timedelta):
            return self.max_age.total_seconds()
        if isinstance(self.max_age, bool) or not isinstance(self.max_age, int | float | None):
            raise ConfigError(f"max_age is a timedelta or seconds, not {self.max_age!r:.80}")
        return self.max_age


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """A session that was deleted, or would be.

    Args:
        session: What is known of it.
        why: The limit it is beyond (`age`, `count`, `size`), `user` when it was erased by name; `fork` of one that
            shares rows of such a one, `sub-agent` of one that belongs to such a one.
    """

    session: SessionInfo
    why: Why


class _Sessions:
    """All sessions of a store, the latest written first, and how they belong together."""

    def __init__(self, infos: Iterable[SessionInfo]) -> None:
        self.infos = {info.id: info for info in infos}
        self.asker = askers(self.infos)
        self.asked = _inverted(self.asker)
        self.forks = _inverted({info.id: info.parent for info in self.infos.values() if info.parent is not None})

    def family(self, session: str) -> list[str]:
        """Give a session and those of its sub-agents, and of theirs."""
        found = [session]
        for member in found:  # it grows on the way
            found += self.asked.get(member, ())
        return found

    def forks_first(self, sessions: Iterable[str]) -> list[str]:
        """Order them so that none comes before its forks."""
        generation = dict.fromkeys(self.infos, 0)
        line = [info.id for info in self.infos.values() if info.parent not in self.infos]
        for parent in line:  # it grows on the way
            for fork in self.forks.get(parent, ()):
                generation[fork] = generation[parent] + 1
                line.append(fork)
        return sorted(sessions, key=lambda session: -generation[session])


def _inverted(pairs: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one, other in pairs.items():
        found.setdefault(other, []).append(one)
    return found


async def prune(
    store: Store, retention: Retention, *, dry_run: bool = False, busy: bool = False, now: datetime | None = None
) -> list[Pruned]:
    """Delete the sessions that are beyond a limit, with the sessions of their sub-agents.

    One that is running, has something in its inbox, or waits for an approval stays, and so does one that has a fork
    which stays. The ids of all sessions are held in memory meanwhile.

    Args:
        store: Where they are.
        retention: What is kept.
        dry_run: Delete nothing; tell what would be.
        busy: Delete also what is running or waits; a writer that it has loses its lease.
        now: From when ages are counted; by default from now.

    Returns:
        What was deleted.

    Raises:
        StoreBusy: It was deleted, but cannot be overwritten yet; see `Store.shred`.
    """
    known = _Sessions([info async for info in store.sessions()])
    beyond = await _beyond(store, known, retention, now or utc_now())
    families = {root: known.family(root) for root in beyond}
    if not busy:
        families = {root: family for root, family in families.items() if not await _any_busy(store, known, family)}
    _keep_shared(known, families)
    found = [
        Pruned(session=known.infos[member], why=beyond[root] if member == root else "sub-agent")
        for root in known.forks_first(families)
        for member in families[root]
    ]
    if dry_run:
        return found
    done = await _delete(store, found, known, idle=not busy)
    if done:
        await store.shred()
    return done


async def erase(store: Store, user: str, *, dry_run: bool = False) -> list[Pruned]:
    """Delete all data of one user: the session with this id, and all whose ids begin with it and a `/`.

    What was made of them goes, too: their forks, under whatever id, and the sessions of their sub-agents; also what
    runs or waits. It is looked again until nothing is left.

    Args:
        store: Where they are.
        user: The user.
        dry_run: Delete nothing; tell what would be.

    Returns:
        What was deleted.

    Raises:
        ConfigError: `user` can be no beginning of an id.
        SessionBusy: New sessions of the user come as fast as they are deleted.
        StoreBusy: It was deleted, but cannot be overwritten yet; see `Store.shred`.
    """
    check_id(user)
    done: list[Pruned] = []
    found, known = await _of_user(store, user)
    if dry_run:
        return found
    for _ in range(_ROUNDS):
        done += await _delete(store, found, known)
        found, known = await _of_user(store, user)
        if not found:
            break
    await store.shred()
    if found:
        raise SessionBusy(f"sessions of {user!r} come as fast as they are erased; end its runs, and erase it again")
    return done


async def _of_user(store: Store, user: str) -> tuple[list[Pruned], _Sessions]:
    """Find a user's sessions and what was made of them, forks first."""
    known = _Sessions([info async for info in store.sessions()])
    ways: tuple[tuple[Why, dict[str, list[str]]], ...] = (("fork", known.forks), ("sub-agent", known.asked))
    whys: dict[str, Why] = {
        session: "user" for session in known.infos if session == user or session.startswith(f"{user}/")
    }
    line = list(whys)
    for session in line:  # it grows on the way
        for why, kin in ways:
            new = [relative for relative in kin.get(session, ()) if relative not in whys]
            whys |= dict.fromkeys(new, why)
            line += new
    return [Pruned(session=known.infos[session], why=whys[session]) for session in known.forks_first(whys)], known


async def _beyond(store: Store, known: _Sessions, retention: Retention, now: datetime) -> dict[str, Why]:
    """Find the sessions that are beyond a limit, those of sub-agents aside."""
    found: dict[str, Why] = {}
    number = 0
    for session, info in known.infos.items():
        if session in known.asker or not session.startswith(retention.prefix):
            continue
        number += 1
        if retention.age is not None and (now - info.modified_at).total_seconds() > retention.age:
            found[session] = "age"
        elif retention.max_sessions is not None and number > retention.max_sessions:
            found[session] = "count"
        elif retention.max_bytes is not None and await _size(store, known.family(session)) > retention.max_bytes:
            found[session] = "size"
    return found


async def _size(store: Store, family: Iterable[str]) -> int:
    infos = [await store.info(session) for session in family]
    return sum(info.size or 0 for info in infos if info is not None)


async def _any_busy(store: Store, known: _Sessions, family: Iterable[str]) -> bool:
    for session in family:
        if known.infos[session].running or await store.inbox(session) or (await store.unfinished(session)).approvals:
            return True
    return False


def _keep_shared(known: _Sessions, families: dict[str, list[str]]) -> None:
    """Leave out what has a fork that stays."""
    gone: set[str] = set()
    for root in known.forks_first(families):
        forks = {fork for member in families[root] for fork in known.forks.get(member, ())}
        if forks <= gone | set(families[root]):
            gone.update(families[root])
        else:
            del families[root]


async def _delete(store: Store, found: Iterable[Pruned], known: _Sessions, *, idle: bool = False) -> list[Pruned]:
    """Delete sessions; one that got busy or a fork meanwhile stays, and its sub-agents' sessions with it."""
    done: list[Pruned] = []
    left: set[str] = set()
    for item in found:
        session = item.session.id
        try:
            if known.asker.get(session) in left:
                left.add(session)
            elif await store.delete(session, idle=idle):
                done.append(item)
        except (ConflictError, SessionBusy):
            left.add(session)
    return done
