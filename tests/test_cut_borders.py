"""A process that dies between a turn's end and what the same run does next leaves a run that is gone on with."""

from itertools import count

import pytest

from streamagent import Agent, MemoryStore, Message, Pipeline, Runtime, SqliteStore, persist, tool, tool_dispatch
from streamagent.records import Owner
from streamagent.stages.compact import compact
from streamagent.stages.reflect import Review, reflect
from streamagent.testing import (
    ScriptedModel,
    answer,
    call,
    calls,
    check_session,
    for_each_point,
    same_rows,
    watched,
)

pytestmark = pytest.mark.anyio

PROMPT = "How many mugs?"
ERROR = {"kind": "context_overflow", "message": "the prompt is too long", "retryable": False}


@pytest.fixture(params=[("asyncio", {"use_uvloop": True})], ids=["uvloop"])
def anyio_backend(request):
    return request.param


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "s.db", synchronous="normal")


@tool(retry_safe=True)
async def stock(product: str) -> int:
    """Units of a product in stock."""
    return 15


async def score(conversation):
    """Want a number, and mugs."""
    said = conversation[-1]
    bad = said.content == "Many." or (said.query or {}).get("args") == {"product": "lost"}
    return Review(score=4, feedback="Say a number of mugs.") if bad else 9


def of_kind(context, kind):
    return [message for message in context if message.type == kind]


def overflow(_=None):
    return [Message.stop("error", error=ERROR)]


def too_long(context):
    """Have an answer when the context was shortened."""
    return overflow() if len(of_kind(context, "text")) > 3 else answer("Fifteen.")


def too_long_again(context):
    """Have room for a call, and none for its result."""
    long = len(of_kind(context, "text")) > 3 or of_kind(context, "tool_result")
    return overflow() if long else calls(call("stock", product="mug"))


def feedback_in(context):
    return [message for message in context if "feedback" in (message.query or {})]


def learns(context):
    return answer("Fifteen." if feedback_in(context) else "Many.")


def calls_better(context):
    if of_kind(context, "tool_result"):
        return answer("Fifteen.")
    return calls(call("stock", product="mug" if feedback_in(context) else "lost"))


def never_learns(_):
    return answer("Many.")


SCENES = {
    "too long": (too_long, ["error", "stop"]),
    "too long, always": (overflow, ["error", "error"]),
    "too long, later as well": (too_long_again, ["error", "tool_calls", "error"]),
    "reviewed": (learns, ["stop", "stop"]),
    "calls reviewed": (calls_better, ["tool_calls", "tool_calls", "stop"]),
    "reviewed, always bad": (never_learns, ["stop", "stop"]),
}


def agent_of(scene, store):
    stages = [reflect([score], rounds=1), tool_dispatch([stock]), persist(lag_ms=0)]
    pipeline = Pipeline(context=[compact(tokens=1000)], reply=stages)
    return Agent(ScriptedModel(SCENES[scene][0]), tools=[stock], pipeline=pipeline, store=store)


async def prepared(store, session):
    """Begin a session with two prompts and their answers."""
    fence = await store.acquire(session, owner=Owner(id=f"before {session}", ttl=15))
    for said in ("one", "two"):
        await store.write(session, [Message.user("x" * 400), *answer(said)], fence=fence)
    await store.release(session, fence=fence, unfinished=False)


def again(store):
    """Give the store to another process."""
    return store if isinstance(store, MemoryStore) else store.reopened()


def reasons(rows):
    return [row.query["reason"] for row in rows if row.type == "stop" and row.query.get("cut") != "resumed"]


class Lives:
    """Sessions of one scene, each in processes of its own.

    Args:
        store: Where they live; open.
        scene: What happens in them.
    """

    def __init__(self, store, scene):
        self.store, self.scene = store, scene
        self.session, self.owners, self.numbers = "", [], count(1)

    async def begin(self, points):
        """Let a process answer, and die at its point."""
        self.session = f"s{next(self.numbers)}"
        await prepared(self.store, self.session)
        await self._live(watched(agent_of(self.scene, again(self.store)), points))

    async def go_on(self):
        """Let the next process go on; return the rows."""
        await self.store.retire(self.owners.pop())
        await self._live(agent_of(self.scene, again(self.store)))
        assert (await self.store.unfinished(self.session)).at_rest
        return await check_session(self.store, self.session, crashed=True)

    async def _live(self, agent):
        runtime = Runtime(store=agent.store)
        self.owners.append(runtime.holding.owner.id)
        async with runtime, agent.session(self.session, runtime=runtime) as session:
            await session.ask(PROMPT, client_key="key")


@pytest.mark.parametrize("scene", SCENES)
async def test_a_run_that_is_cut_anywhere_comes_to_the_rows_of_one_that_is_not(store, scene):
    found = []
    async with store:
        lives = Lives(store, scene)

        async def check(points):
            found.append((points.hit, await lives.go_on()))

        names = await for_each_point(lives.begin, check, only="store.", fatal=True)
    uncut = found.pop()[1]
    assert (len(names) > 8, reasons(uncut)[2:]) == (True, SCENES[scene][1])
    for hit, rows in found:
        try:
            same_rows(rows, uncut)
        except AssertionError as error:
            error.add_note(f"cut at {hit}")
            raise
