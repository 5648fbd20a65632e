"""The context stages over a real store, where large rows come in pieces."""

import pytest

from streamagent.agent import Agent
from streamagent.attachments import file
from streamagent.models.mock import MockModel
from streamagent.pipeline import Pipeline
from streamagent.stages.compact import HEADER, compact
from streamagent.stages.inject import inject
from streamagent.stages.persist import persist
from streamagent.stages.redact import redact
from streamagent.stages.tool_dispatch import tool_dispatch
from streamagent.stores.memory import MemoryStore
from streamagent.stores.sqlite import SqliteStore
from streamagent.tools.function import tool as as_tool
from tests.scripted import ScriptedModel, answer, call, calls, check_rows

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return request.param  # SQLite is asyncio's


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "s.db")


@as_tool
async def dump(size: int) -> str:
    """Many lines with a secret."""
    return ("line " * (size // 5)) + "canary-4711"


def agent(model, store, *context):
    pipeline = Pipeline(context=context, reply=[tool_dispatch([dump]), redact(values=["canary-4711"]), persist()])
    return Agent(model, tools=[dump], store=store, pipeline=pipeline, system="Be kind.")


async def test_a_session_stays_below_its_limit_and_loses_nothing(store):
    turns = [turn for n in range(6) for turn in (calls(call("dump", f"c{n}", size=8_000)), answer(f"Answer {n}."))]
    model = ScriptedModel(*turns)
    stages = [compact(tokens=7_000, model=MockModel("In short.")), inject(lambda *_: "News.")]
    async with agent(model, store, *stages).session("s") as session:
        for number in range(6):
            await session.ask(f"Question {number}?")
    async with store:
        rows = await check_rows(store)
    sizes = [sum(len(message.content) for message in seen) // 4 for seen in model.contexts]
    assert max(sizes) < 7_000 < sum(len(row.content) for row in rows) // 4
    assert len([row for row in rows if row.type == "tool_result"]) == 6
    last = [message.content for message in model.contexts[-1]]
    assert last[:2] == ["Be kind.", f"{HEADER}In short."]
    assert [text for text in last if text.startswith("Question")][-1] == "Question 5?"
    assert "canary" not in "".join(last)


async def test_a_prompt_of_several_pieces_is_one_prompt_and_is_searched(store):
    model = ScriptedModel(answer("Yes."))
    prompt = "x" * 65_530 + " canary-4711 " + "y" * 100_000
    stages = [redact(values=["canary-4711"]), compact(tokens=100_000)]
    async with agent(model, store, *stages).session("s") as session:
        await session.ask(prompt)
    seen = "".join(message.content for message in model.contexts[0][1:])
    assert seen == prompt.replace("canary-4711", "[redacted]")
    assert len(model.contexts[0]) > 3


async def test_a_file_is_stored_and_read_by_the_model(store, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("Remember the milk.")
    async with Agent("mock", store=store).session("s") as session:
        reply = await session.ask(file(path))
    async with store:
        rows = await check_rows(store)
    assert reply.text == "This is a mock answer to: [file: notes.txt]\nRemember the milk."
    assert rows[0].query == file(path).query
