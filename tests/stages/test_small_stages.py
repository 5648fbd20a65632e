"""persist, whole, buffer, think_tags, strip_reasoning: what each does, beyond its endings."""

from dataclasses import replace

import anyio
import pytest
from anyio import create_task_group
from hypothesis import given
from hypothesis import strategies as st

from streamagent import (
    ConfigError,
    MemoryStore,
    Pipeline,
    buffer,
    persist,
    strip_reasoning,
    think_tags,
    tool_dispatch,
    whole,
)
from streamagent.errors import MessageTooLarge
from streamagent.message import Message, fold, split
from streamagent.pipeline import BareRun, open_pipeline
from streamagent.testing.stages import Boom, Probe, check_stage
from tests.scripted import text

pytestmark = pytest.mark.anyio


async def test_persist_commits_what_is_not_text_before_it_passes_it_on():
    store = MemoryStore()
    call = Message(type="tool_call", query={"tool": "x", "id": "c1", "args": {}})
    async with open_pipeline(Probe([call]).stream(), persist(), store=store, session="s") as tail:
        shown = await anext(tail)
        assert shown.sequence == 1
        assert [m.id async for m in store.read("s")] == [call.id]


async def test_persist_without_lag_commits_text_before_it_passes_it_on():
    class Spy(MemoryStore):
        soon = 0

        def write_soon(self, *args, **kwargs):
            self.soon += 1
            return super().write_soon(*args, **kwargs)

    for lag_ms, waits in [(0, 0), (50, 2)]:
        store = Spy()
        async with open_pipeline(Probe(text("a")).stream(), persist(lag_ms=lag_ms), store=store, session="s") as tail:
            seen = [m.sequence async for m in tail]
        assert store.soon == waits
        assert seen == ([None, None] if waits else [1, 1])


async def test_persist_flushes_at_its_limit_of_bytes_and_not_before():
    class Spy(MemoryStore):
        flushed = 0

        async def flush(self, session):
            self.flushed += 1
            await super().flush(session)

        def write_soon(self, session, fragment, *, fence, lag):
            super().write_soon(session, fragment, fence=fence, lag=lag)
            return len(fragment.content.encode())

    store = Spy()
    async with open_pipeline(
        Probe(text("é" * 4, "é" * 5)).stream(), persist(lag_bytes=10), store=store, session="s"
    ) as tail:
        flushes = [store.flushed async for _ in tail]
    assert flushes == [0, 1, 1]


async def test_persist_leaves_alone_what_is_stored_already():
    store = MemoryStore()
    stored = Message(role="user", content="?", sequence=4)
    assert await check_stage(persist(), [stored], store=store) == [stored]
    assert [m async for m in store.read("check")] == []


@pytest.mark.parametrize("wrong", [{"lag_ms": -1}, {"lag_bytes": -1}])
def test_persist_refuses_a_negative_lag(wrong):
    with pytest.raises(ValueError, match="0 or more"):
        persist(**wrong)


async def test_whole_joins_each_message_and_keeps_completion_order():
    one, two = list(split(Message(content="abcd"), 2)), list(split(Message(content="efgh"), 2))
    mixed = [one[0], two[0], Message(type="progress", content="!"), two[1], one[1]]
    assert [m.content for m in await check_stage(whole(), mixed)] == ["!", "efgh", "abcd"]


async def test_whole_passes_on_what_never_closed():
    [seen] = await check_stage(whole(), text("a", "b")[:2])
    assert (seen.content, seen.more) == ("ab", True)


async def test_whole_holds_up_to_its_limit_and_not_one_more():
    messages = text("abc", "de")
    assert [m.content for m in await check_stage(whole(max_chars=5), messages)] == ["abcde"]
    with pytest.raises(MessageTooLarge, match="limit is 4"):
        await check_stage(whole(max_chars=4), messages)


async def test_whole_counts_only_what_it_holds():
    messages = [*text("abc"), *text("def")]
    assert [m.content for m in await check_stage(whole(max_chars=3), messages)] == ["abc", "def"]


async def test_buffer_runs_ahead_by_its_size_and_no_further():
    pulled = []

    async def source():
        for number in range(10):
            pulled.append(number)
            yield Message(content=str(number))

    async with open_pipeline(source(), buffer(3)) as tail:
        assert (await anext(tail)).content == "0"
        await anyio.wait_all_tasks_blocked()
        assert len(pulled) <= 1 + 3 + 1  # seen, waiting, and the one whose hand-over blocks
        assert [m.content async for m in tail] == [str(n) for n in range(1, 10)]


async def test_buffer_raises_the_sources_error_where_it_is_read():
    async with open_pipeline(Probe(text("a"), fail_at=1).stream(), buffer(8)) as tail:
        assert (await anext(tail)).content == "a"
        with pytest.raises(Boom):
            await anext(tail)


async def test_buffer_ends_quietly_when_its_reader_has_left():
    async with create_task_group() as tasks:
        stream = Probe([*text("abc")]).stream()
        tail = buffer(0)(stream, BareRun(tasks))
        await anext(tail)
        await anyio.wait_all_tasks_blocked()  # the next one waits for the reader
        await tail.aclose()
    await stream.aclose()


@pytest.mark.parametrize(
    "duties", [["buffer", "dispatch", "persist"], ["dispatch", "buffer", "persist"], ["buffer", "dispatch"]]
)
def test_buffer_stands_behind_those_that_run_and_store_calls(duties):
    stages = {"buffer": buffer(2), "dispatch": tool_dispatch([]), "persist": persist()}
    with pytest.raises(ConfigError, match="buffer stands behind tool_dispatch and persist"):
        Pipeline(reply=[stages[duty] for duty in duties])


def test_buffer_may_stand_where_nobody_waits_for_what_is_stored_and_more_than_once():
    Pipeline(reply=[buffer(1), buffer(2), persist()])
    Pipeline(reply=[tool_dispatch([]), persist(), buffer(1), buffer(2)])
    Pipeline(reply=[buffer(1)])


def test_buffer_refuses_a_negative_size():
    with pytest.raises(ValueError, match="0 or more"):
        buffer(-1)


async def test_strip_reasoning_hides_reasoning_and_nothing_else():
    messages = [Message(type="reasoning", content="hm"), *text("a"), Message.stop("stop")]
    assert [m.type for m in await check_stage(strip_reasoning(), messages)] == ["text", "text", "stop"]


async def thought(pieces, **options):
    seen = fold(await check_stage(think_tags(**options), [*text(*pieces), Message.stop("stop")]))
    assert not any(m.more for m in seen)
    return [(m.type, m.content) for m in seen[:-1]]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["<think>hm</think>An", "swer"], [("reasoning", "hm"), ("text", "Answer")]),
        (["<th", "ink>h", "m</thi", "nk>A"], [("reasoning", "hm"), ("text", "A")]),
        (["Use <think> tags"], [("text", "Use <think> tags")]),
        (["a <"], [("text", "a <")]),
        (["<think>only"], [("reasoning", "only")]),
        (["<"], [("text", "<")]),
    ],
)
async def test_think_tags_takes_only_a_leading_block(pieces, expected):
    assert await thought(pieces) == expected


async def test_think_tags_of_a_template_that_opened_the_block():
    assert await thought(["hm</think>A"], starts_in_think=True) == [("reasoning", "hm"), ("text", "A")]


async def test_think_tags_leaves_users_and_other_types_alone():
    messages = [Message.user("<think>x</think>y"), Message(type="reasoning", content="<think>")]
    assert await check_stage(think_tags(), messages) == messages


async def test_think_tags_takes_a_message_that_came_whole():
    seen = await check_stage(think_tags(), [Message(content="<think>hm</think>A", query={"cut": "aborted"})])
    assert [(m.type, m.content, m.query) for m in fold(seen)] == [
        ("reasoning", "hm", None),
        ("text", "A", {"cut": "aborted"}),
    ]


@given(st.text(alphabet="<think>/ax", max_size=30), st.integers(1, 5))
def test_think_tags_is_the_same_for_every_fragmentation(content, size):
    async def run():
        whole_text = fold(await check_stage(think_tags(), [Message(content=content)]))
        fragments = list(split(Message(content=content), size))
        cut = fold(await check_stage(think_tags(), fragments))
        assert [(m.type, m.content) for m in cut] == [(m.type, m.content) for m in whole_text]

    anyio.run(run)


def test_messages_of_text_helper_share_an_id():
    pieces = text("a", "b")
    assert len({m.id for m in pieces}) == 1
    assert fold(pieces) == [replace(pieces[0], content="ab", more=False)]
