"""Guards that no simulation sees, each with a scenario of its own, which names the invariant when the guard is out."""

import sqlite3
from unittest import mock

import aiosqlite

from streamagent import Agent, Message, SqliteStore
from streamagent._core import pairing
from streamagent.models import faults
from streamagent.stores import _connection, _pages
from streamagent.testing import (
    ScriptedModel,
    SimulationFailed,
    answer,
    assert_no_leaks,
    check_refused,
    check_session,
    simulate_resuming,
)

from .seeds import RESUMED

SECRET = "canary-0123456789"


class Refused(ScriptedModel):
    """A provider that says in its error which key it was given."""

    async def stream(self, context, **options):
        error = faults.to_model_error(RuntimeError(f"401: no such key: {SECRET}"), [SECRET])
        yield Message.stop("error", error={"kind": error.kind, "message": str(error), "retryable": error.retryable})


async def large_answer(folder):
    """I10."""
    await ask(folder, ScriptedModel(answer("é" * 100_000)))


async def store_that_is_closed(folder):
    """I11."""
    folder.mkdir()
    async with SqliteStore(folder / "first.db"):  # what the first one imports stays
        pass
    try:
        async with assert_no_leaks():
            await ask(folder, ScriptedModel(answer("Yes.")))
    finally:
        while LEFT:
            await CLOSE(LEFT.pop())


async def deaths(folder):
    """I12: the same rows, whichever seed."""
    for seed in range(40):
        try:
            simulate_resuming(RESUMED, seed=seed)
        except SimulationFailed as failure:
            raise AssertionError(str(failure).partition("\n")[2]) from failure


async def two_tenants(folder):
    """I14."""
    await ask(folder, ScriptedModel(answer("Yes.")), tenants=["other"])


async def refused_key(folder):
    """I17."""
    await ask(folder, Refused(), secrets={SECRET})


async def newer_file(folder):
    """I20."""
    folder.mkdir()
    path = folder / "s.db"
    async with SqliteStore(path):
        pass
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    assert "it has version 99" in await check_refused(SqliteStore(path), path)


async def ask(folder, model, *, tenants=(), **logged):
    folder.mkdir(exist_ok=True)
    agent = Agent(model, store=SqliteStore(folder / "s.db"))
    async with agent.session("s") as session:
        await session.ask("Go.")
        others = [SqliteStore(folder / "s.db", tenant=tenant) for tenant in tenants]
        for other in others:
            await other.__aenter__()
        try:
            async with agent.store.reopened() as store:
                await check_session(store, others=others, **logged)
        finally:
            for other in others:
                await other.__aexit__(None, None, None)


def without_tenant(text):
    """Take the tenant out of a condition; the parameter stays."""
    return text.replace("tenant = ?", "? IS NOT NULL", 1)


async def leave(db):
    LEFT.append(db)


LEFT = []
READ_LINEAGE, QUERY, CLOSE = _pages.read_lineage, pairing._query, aiosqlite.Connection.close
OPEN = mock.patch.object(aiosqlite.Connection, "close", leave)
WHOLE = mock.patch.object(_pages, "PIECE", 1 << 30)
SUPERSEDED = [  # each has the other one behind it
    mock.patch("streamagent.run.latest_pages", lambda pages: pages),
    mock.patch.object(pairing, "_query", lambda row, key: "" if key == "cut" else QUERY(row, key)),
]
PAGES = ("_MESSAGES", "_MIXED", "_TALK")  # ways to read one
TENANT = [  # the last one says who keeps the rows
    *(
        mock.patch.object(_pages, name, without_tenant(getattr(_pages, name)))
        for name in ("_MESSAGES", "_MIXED", "_TALK")
    ),
    mock.patch.object(_pages, "read_lineage", lambda db, _, *of: READ_LINEAGE(db, "default", *of)),
]
TOLD = mock.patch.object(faults, "redact", lambda text, _: text)
NEWER = mock.patch.object(_connection, "_identify", lambda *_: _connection.VERSION)
APART = {
    "a large row is read whole": ("I10", large_answer, [WHOLE]),
    "a store's file is not closed": ("I11", store_that_is_closed, [OPEN]),
    "an attempt is not superseded": ("I12", deaths, SUPERSEDED),
    "rows are read without the tenant": ("I14", two_tenants, TENANT),
    "a provider's error is told with the key": ("I17", refused_key, [TOLD]),
    "a file of a newer version is opened": ("I20", newer_file, [NEWER]),
}
