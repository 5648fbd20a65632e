"""The scenario of the crash matrix: two turns, three tools, an approval, a steering message; cut, and gone on with.

The model answers by the request alone, so that two lives of a session can be compared word for word.
"""

import json
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from anyio.lowlevel import checkpoint

from streamagent import (
    Agent,
    MemoryStore,
    Message,
    Pipeline,
    Runtime,
    SqliteStore,
    ToolContext,
    persist,
    tool,
    tool_dispatch,
)
from streamagent._core.profiles import profile_for
from streamagent._core.request import build_request
from streamagent.message import new_id
from streamagent.stores.postgres import PostgresStore
from streamagent.testing import Effect, Shown, Write, check_session, same_rows, watched

for heavy in ("jsonschema", "psycopg", "streamagent.stores._sqlite_writer"):
    import_module(heavy)  # once, in the server, and not in each of its children

SECRET = "canary-0123456789"  # what a fault says of its process, which nobody is told
PROMPT, STEERING = "Send a mug, and pay back the order.", "A blue one."
TOOLS = {"stock": {"product": "mug"}, "ship": {"product": "mug"}, "refund": {"order": "1"}}
QUIET = 3600.0  # seconds between two looks of a runtime: none comes, so that each life passes the same points


class Clerk:
    """A model whose answer depends on what it is asked, and on nothing else."""

    name = "clerk"

    async def stream(self, context, *, tools=(), settings=None, deadline=None):
        asked = build_request([message async for message in context], profile_for("openai/gpt-4o"))
        said = [message["content"] for message in asked if message["role"] == "tool"]
        for item in _second(said, asked) if said else _first():
            await checkpoint()
            yield item


def _first():
    """Think, say something, call each tool; the first call comes in fragments."""
    yield from _pieces("reasoning", "Stock ", "first.")
    yield from _pieces("text", "I ", "look ", "into it.")
    for number, (name, args) in enumerate(TOOLS.items()):
        whole, query = json.dumps(args), {"tool": name, "id": f"c{number}"}
        yield from _pieces("tool_call", whole[:5], whole[5:], query=query, last={**query, "args": args})
    yield Message.stop("tool_calls", model=Clerk.name, usage={"total_tokens": 30})


def _second(said, asked):
    """Say all results and the whole request again."""
    yield from _pieces("text", *(f"{text}; " for text in said), json.dumps(asked))
    yield Message.stop("stop", model=Clerk.name, usage={"total_tokens": 40})


def _pieces(kind, *pieces, query=None, last=None):
    id_ = new_id()
    for piece in pieces:
        yield Message(id=id_, type=kind, content=piece, query=query, more=True)
    yield Message(id=id_, type=kind, query=last)


@dataclass
class Life:
    """A session, and what its tools have done in the world.

    Args:
        where: Path of an SQLite file, or `URL#SCHEMA`; or a store in memory.
        session: Its id.
        folder: Where the effects are written down.
        gated: The tool that needs an approval.
        lag: Of its text, in milliseconds.
    """

    where: Any
    session: str
    folder: str
    gated: str = "refund"
    lag: float = 0.0

    def open(self, tenant="default"):
        if isinstance(self.where, MemoryStore):
            return self.where if tenant == "default" else MemoryStore(tenant=tenant)
        url, _, schema = self.where.rpartition("#")
        if url:
            return PostgresStore(url, schema=schema, tenant=tenant)
        return SqliteStore(self.where, tenant=tenant, synchronous="normal")

    @property
    def file(self):
        return Path(self.folder) / f"{self.session}.effects"

    def effects(self):
        return [Effect(**told) for told in self._told() if "kept" not in told]

    def repeated(self):
        """Give the effects of calls whose result was in the ledger already."""
        told = self._told()
        return [one for number, one in enumerate(told) if {"kept": one.get("call")} in told[:number]]

    def tell(self, **told):
        with self.file.open("a") as file:
            file.write(json.dumps(told) + "\n")

    def _told(self):
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [json.loads(line) for line in lines]


def make_tools(life, points, steer):
    """Make the tools of a process; whoever calls `stock` hears the user say something meanwhile."""

    def do(name, args, key):
        points.point(f"effect {name} before")
        session, _, call = key.rpartition(":")
        life.tell(call=call, tool=name, args=args, outcome="returned", session=session)
        points.point(f"effect {name} after")
        return f"{name} is done"

    async def stock(product: str, context: ToolContext) -> str:
        """Look how many there are."""
        await steer()
        return do("stock", {"product": product}, context.idempotency_key)

    async def ship(product: str, context: ToolContext) -> str:
        """Send one."""
        return do("ship", {"product": product}, context.idempotency_key)

    def look_up(call):
        """Tell what came of it; what has not happened can be done now."""
        done = any(effect.call == call.id for effect in life.effects())
        return "ship is done" if done else do("ship", dict(call.args), call.context.idempotency_key)

    async def refund(order: str, context: ToolContext) -> str:
        """Pay an order back."""
        return do("refund", {"order": order}, context.idempotency_key)

    return [
        tool(stock, retry_safe=True),
        tool(ship, reconcile=look_up, requires_approval=life.gated == "ship"),
        tool(refund, retry_safe=True, requires_approval=life.gated == "refund"),
    ]


for made in make_tools(Life(None, "", ""), None, None):
    assert made.spec.parameters  # what pydantic imports for that, too


@dataclass
class Process:
    """What is known of a process beside its rows."""

    life: Life
    number: int = 0
    shown: list = field(default_factory=list)
    writes: list = field(default_factory=list)
    owner: str = ""

    def note(self, name, args, options, result):
        """Take note of what it wrote; see `FaultyStore.wrote`."""
        rows = {"write": args[1:2], "write_soon": [args[1:2]], "admit": [result]}.get(name, [()])[0]
        self.writes += [Write(owner=self.number, fence=options["fence"], id=row.id) for row in rows]
        if name == "finish_call":
            self.life.tell(kept=args[1])


async def live(points, process):
    """Ask, decide what waits, go on: in a new process, whatever an earlier one has done of it."""
    life = process.life

    async def steer():
        async with agent.session(life.session, runtime=runtime) as other:
            await other.steer(STEERING, client_key=STEERING)

    pipeline = Pipeline(reply=[tool_dispatch(make_tools(life, points, steer)), persist(lag_ms=life.lag)])
    agent = watched(Agent(Clerk(), pipeline=pipeline, store=life.open()), points)
    agent.store.wrote = process.note
    runtime = Runtime(store=agent.store, poll=QUIET)
    process.owner = runtime.holding.owner.id
    async with runtime, agent.session(life.session, runtime=runtime) as session:
        await _read(session.ask(PROMPT, client_key=PROMPT), process, key=PROMPT)
        for approval in await session.pending():
            await session.approve(approval, by="the boss")
        await _read(session.resume(), process)


async def _read(reply, process, key=None):
    viewer = Shown(key=key, prompt=key or "")
    process.shown.append(viewer)
    async for message in reply:
        viewer.take(message)
    viewer.ended = True


async def scenario(points, told):
    """Live in a child process."""
    await live(points, Process(Life(**json.loads(told))))


async def check(store, life, processes=(), uncut=None, **found):
    """Check all that is known of a session that came to its end, and compare it to one that was not cut.

    Args:
        store: Where it lives; open.
        life: The session's.
        processes: Those in which it was, if they were this one's.
        uncut: The rows of the other one.
        found: What else `check_session` takes.
    """
    rows = await check_session(
        store,
        life.session,
        secrets={SECRET},
        effects=life.effects(),
        shown=[viewer for process in processes for viewer in process.shown],
        writes=[write for process in processes for write in process.writes],
        accepted={PROMPT: PROMPT, STEERING: STEERING},
        crashed=uncut is not None,
        gated=frozenset({life.gated}),
        retry_safe=frozenset({"stock", "refund"}),
        max_turns=2,
        **found,
    )
    assert [*await store.calls(life.session), *await store.inbox(life.session)] == []
    assert (await store.unfinished(life.session)).at_rest
    assert life.session not in await store.unattended()
    assert [effect.tool for effect in life.effects()].count("ship") == 1
    assert life.repeated() == []
    if uncut is not None:
        same_rows(rows, uncut)
    return rows
