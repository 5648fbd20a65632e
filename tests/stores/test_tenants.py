"""I14: whatever a neighbour keeps under the same names, a tenant sees and changes its own rows, on both databases."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone

import psycopg
import pytest

from streamagent.errors import StreamAgentError
from streamagent.message import Message
from streamagent.records import Owner
from streamagent.stores.postgres import PostgresStore
from streamagent.stores.sqlite import SqliteStore
from streamagent.testing.contract.rows import KIB64, rows

pytestmark = pytest.mark.anyio

TABLES = {
    "messages": "session, id, sequence, prev, role, type, state, client_key, size, answered, source, fence, content",
    "fragments": "session, message, piece, content",
    "leases": "session, head, fence, owner, crashes, parent, base, prev",
    "owners": "owner",
    "calls": "session, call, state, attempts, fence",
}
HERE, APART = "_here", "_apart"
SESSIONS = ("s", "f", "g")
ALICE, BOB = Owner(id="alice", ttl=1000.0), Owner(id="bob", ttl=1000.0)
MADE = datetime(2025, 1, 1, tzinfo=timezone.utc)


def said(name, content="", **fields):
    """All is made at one time, so that what is told can be compared."""
    return Message(id=name, content=content, created_at=MADE, **fields)


OPEN = said("open", "a", more=True)
CALL = said("call", "{}", type="tool_call", query={"tool": "stock", "id": "1", "args": {}})
RESULT = said("result", "15", role="tool", type="tool_result", query={"tool": "stock", "call": "call"})


@pytest.fixture
def anyio_backend():
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def database(request, tmp_path):
    """How a tenant's store is made, in one of two databases, and how SQL is asked there past it."""
    if request.param == "sqlite":

        def ask(place, sql):
            with closing(sqlite3.connect(tmp_path / place)) as db:
                return db.execute(sql).fetchall()

        yield lambda place, tenant: SqliteStore(tmp_path / place, tenant=tenant, synchronous="normal"), ask
        return
    postgres, schema = request.getfixturevalue("postgres"), request.getfixturevalue("schema")
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        yield (
            lambda place, tenant: PostgresStore(postgres.url(), schema=schema + place, tenant=tenant),
            lambda place, sql: db.execute(sql.replace("FROM ", f"FROM {schema}{place}.")).fetchall(),
        )
    for place in (HERE, APART):
        postgres.drop(schema + place)


# Also of what is unfinished, and of what is answered later, a neighbour has some at the first sequence.
CALL_AHEAD = replace(CALL, id="ahead call")
FINISHED = [said("ahead"), said("next")]
AHEAD = [said("ahead", more=True), said("next")], [CALL_AHEAD, said("ahead")]
NEIGHBOURS = ("a", "z")  # one whose rows are found before those of "me", and one behind them
REFUSED = ("step_11", "step_12", "step_14")  # what a life may not do, because of what it did before


class Life:
    """What a tenant does, step by step, with the same names as every other one.

    Args:
        store: Its store.
        word: What it says.
        ahead: What it writes first, so that sequences and fences are others.
        forked: It has that from another session.
    """

    def __init__(self, store, word, *, ahead=(), forked=False):
        self.store, self.word, self.ahead, self.forked = store, word, ahead, forked
        self.fences = {}

    @property
    def stop(self):
        return said("stop", type="stop", query={"reason": "stop", "usage": {"total_tokens": len(self.word)}})

    def steps(self):
        return [getattr(self, name) for name in sorted(vars(type(self))) if name.startswith("step_")]

    async def step_01_write(self):
        for message in self.ahead:
            await self.write("root" if self.forked else "s", message)
        if self.forked:
            await self.store.fork("root", "s")
        self.fences.clear()
        return await self.write("s", said("first", self.word), OPEN, owner=ALICE)

    async def step_02_enqueue(self):
        return await self.store.enqueue("s", said("prompt", self.word, role="user"), client_key="key")

    async def step_03_grow(self):
        await self.write("s", replace(OPEN, content=self.word))
        return await self.write("s", said("large", self.word * KIB64))

    async def step_04_call(self):
        return await self.write("s", CALL), await self.store.start_call("s", "call", fence=self.fences["s"])

    async def step_05_finish(self):
        await self.store.finish_call("s", "call", RESULT, fence=self.fences["s"])

    async def step_06_fork(self):
        await self.store.fork("s", "f")

    async def step_07_answer(self):
        if CALL_AHEAD in self.ahead:
            await self.write("s", replace(RESULT, id="ahead result", query={"call": CALL_AHEAD.id}))
        return await self.write("s", RESULT, self.stop)

    async def step_08_close(self):
        return await self.write("s", replace(OPEN, content=self.word, more=False))

    async def step_09_admit(self):
        return await self.store.admit("s", fence=self.fences["s"])

    async def step_10_fork_again(self):
        await self.store.fork("f", "g", at=1 + len(self.ahead))
        return await self.write("g", said("own", self.word))

    async def step_11_again(self):
        return await self.store.enqueue("s", said("other", self.word, role="user"), client_key="key")

    async def step_12_shared_ids(self):
        return await self.write("f", said("first"))

    async def step_12_ids_of_others(self):
        return await self.write("f", said("ahead"))

    async def step_13_retire(self):
        await self.store.retire("alice")

    async def step_13_take_over(self):
        return await self.store.acquire("s", owner=BOB)

    async def step_14_delete_a_parent(self):
        return await self.store.delete("s")

    async def step_15_delete(self):
        return [await self.store.delete(session) for session in "gfs"]

    async def step_16_begin_again(self):
        self.fences.clear()
        return await self.write("s", said("first", self.word))

    async def write(self, session, *messages, owner=None):
        if session not in self.fences:
            self.fences[session] = await self.store.acquire(session, owner=owner)
        return await self.store.write(session, messages, fence=self.fences[session])

    async def live(self, count):
        for step in self.steps()[:count]:
            refused = "Error" in (await self.do(step))[:20]
            assert not refused or step.__name__.startswith(REFUSED)

    async def do(self, step):
        """Take a step; return what it said, and all that the store tells then."""
        try:
            result = await step()
        except (StreamAgentError, KeyError) as error:
            result = f"{type(error).__name__}: {error}"
        store = self.store
        told = [result, await store.unattended(), await store.waiting(SESSIONS, "text"), await store.usage(None)]
        told.append([(info.id, info.messages) async for info in store.sessions()])
        for session in SESSIONS:
            told += [await rows(store, session), await store.inbox(session), await store.unfinished(session)]
            told += [await store.tally(session), await store.usage(session)]
            told += [
                (note.call, note.attempts, note.outcome and note.outcome.content) for note in await store.calls(session)
            ]
        return repr(told)


# The SQL is one for both databases: the second one is asked at three of the places.
CASES = [*(("sqlite", count) for count in range(1, 19)), *(("postgres", count) for count in (5, 11, 17))]


@pytest.mark.parametrize(("database", "count"), CASES, indirect=["database"])
async def test_a_neighbour_with_the_same_names_is_neither_seen_nor_changed(database, count):
    make, ask = database

    def kept(place, tenant):
        return {
            table: sorted(map(repr, ask(place, f"SELECT {columns} FROM {table} WHERE tenant = '{tenant}'")))
            for table, columns in TABLES.items()
        }

    for tenant in NEIGHBOURS:
        forked = tenant == "z"
        async with make(HERE, tenant) as store:
            await Life(store, "theirs", ahead=FINISHED if forked else AHEAD[count % 2], forked=forked).live(count)
    left = [kept(HERE, tenant) for tenant in NEIGHBOURS]
    async with make(APART, "me") as alone, make(HERE, "me") as beside:
        one, other = Life(alone, "mine"), Life(beside, "mine")
        for step, same in zip(one.steps(), other.steps(), strict=True):
            assert await one.do(step) == await other.do(same)
            assert kept(APART, "me") == kept(HERE, "me")
            assert [kept(HERE, tenant) for tenant in NEIGHBOURS] == left
