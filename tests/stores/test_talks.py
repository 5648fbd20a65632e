"""Exchanges of plain text are sent as they are read, many at once; no byte differs from what is sent of messages."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import count

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st

from streamagent import Message, SqliteStore, exactjson
from streamagent._core.profiles import PROFILES, Profile
from streamagent._core.request import RequestBuilder
from streamagent.attempts import latest, latest_pages
from streamagent.message import new_id
from streamagent.models.body import StreamedBody
from streamagent.models.chunks import History
from streamagent.stores import _pages
from streamagent.stores.memory import MemoryStore
from streamagent.talk import Talk, in_pages
from streamagent.turn import Given, Turn

SESSION, FORK = "s", "f"
PROFILE = Profile()


def in_talks(store, session):
    return lambda until, talks: latest_pages(store.pages(session, until=until, talks=talks))


def in_messages(store, session):
    return lambda until, _: in_pages(latest(store.read(session, until=until)))


async def sent(rows, profile):
    """Give what a request would be when it is sent while it is read, what it would be when it is held, and its size."""
    turn = Turn("m")
    context = Given(rows, "Be brief.", turn)
    body = StreamedBody({"model": "m"}, History(context, profile))
    streamed = b"".join([piece async for piece in body.pieces()])
    asked, builder = turn.asked, RequestBuilder(profile)
    async for page in context.pages():
        for item in page:
            builder.add_item(item)
    held = exactjson.dumps_each(builder.finish())
    return streamed, held, asked, turn.asked, context._until, [message async for message in context][1:]


async def check(store, session, profile=PROFILE):
    assert await sent(in_talks(store, session), profile) == await sent(in_messages(store, session), profile)


async def talks_of(store, session):
    pages = [page async for page in store.pages(session)]
    return [item for page in pages for item in page if isinstance(item, Talk)]


def call_with_result(number):
    call = Message(type="tool_call", query={"tool": "stock", "id": f"c{number}", "args": {"of": number}})
    query = {"tool": "stock", "id": f"c{number}", "call": call.id}
    return [call, Message.stop("tool_calls"), Message(role="tool", type="tool_result", content="3", query=query)]


def exchange(number, *, size=10):
    thought = Message(type="reasoning", content="Hm", query={"provider": {"thinking_blocks": [number]}})
    said = f"{number} ".ljust(size, "x")
    return [Message.user(said), thought, Message(content=said), Message.stop("stop", model="m", usage={"n": number})]


def conversation():
    rows = [row for number in range(300) for row in exchange(number, size=2000 if number < 200 else 10)]
    rows[5] = replace(rows[5], content="z" * 200_000)  # what was thought, in pieces
    rows += [Message.user("How many?"), *call_with_result(1), Message(content="3"), Message.stop("stop")]
    rows += [row for number in range(300, 320) for row in exchange(number)]
    image = Message(role="user", type="image", query={"mime": "image/png", "data": "aGk="})
    rows += [image, Message.user("What is it?"), Message(content="y" * 200_000), Message.stop("stop")]
    return [*rows, *(row for number in range(330, 340) for row in exchange(number)), Message.user("And now?")]


@pytest.mark.anyio
async def test_a_long_conversation_is_a_few_talks_and_sent_as_ever(either_store):
    async with either_store as store:
        fence = await store.acquire(SESSION)
        await store.write(SESSION, conversation(), fence=fence)
        if isinstance(store, MemoryStore):
            return
        talks = await talks_of(store, SESSION)
        assert sum(len(talk.entries) for talk in talks) > 600
        assert len(talks) < 20
        for profile in (PROFILE, *PROFILES.values()):
            await check(store, SESSION, profile)
        await store.fork(SESSION, FORK, at=1000)
        await store.write(FORK, exchange(1), fence=await store.acquire(FORK))
        assert await talks_of(store, FORK)
        await check(store, FORK)


CONTENTS = st.sampled_from(["Hi", "", " \n", "null", 'a ":null" b', "é\u2028", "😀\x7f\x1f\\", "cut", '"', "\u3000"])
LARGE = st.just("z" * 70_000)
QUERIES = st.sampled_from([None, None, {"note": "a"}, {"cut": "cancelled"}, {"args": {"a": 1}}, {"cut": "resumed"}])
SPOILT = [
    ("created_at", "garbage"),
    ("created_at", "2024-01-01"),
    ("content", "a\0b"),
    ("content", b"\xff"),
    ("query", "[1]"),
    ("query", '{"cut": "resumed"}'),
    ("query", '{"c\\u0075t": "resumed"}'),
    ("query", '{"args": {"a": "bcdefghijklmnopqrstuvwxyz"}}'),
    ("role", "robot"),
    ("attempt", 2),
    ("attempt", "many"),
    ("state", "open"),
]


@st.composite
def odd_exchanges(draw):
    """An exchange of which one row is another one, comes twice, or is followed by something else."""
    rows = exchange(draw(st.integers(0, 3)))
    place = draw(st.integers(0, 3))
    how = draw(st.sampled_from(["content", "query", "attempt", "type", "role", "more", "twice", "then"]))
    values = {"content": CONTENTS | LARGE, "query": QUERIES, "attempt": st.just(2), "more": st.just(True)}
    values |= {"type": TYPES, "role": st.sampled_from(["system", "user", "assistant"])}
    if how in values:
        rows[place] = replace(rows[place], **{how: draw(values[how])})
        return rows
    added = [replace(rows[place], id=new_id())] if how == "twice" else draw(ODDS)
    return [*rows[: place + 1], *added, *rows[place + 1 :]]


TYPES = st.sampled_from(["text", "reasoning", "stop", "image", "data"])
ODDS = st.one_of(
    st.builds(call_with_result, st.integers(0, 3)),
    st.builds(lambda number: call_with_result(number)[:2], st.integers(0, 3)),
    st.builds(lambda number: [replace(call_with_result(number)[2], query={"id": f"c{number}"})], st.integers(0, 3)),
    st.builds(lambda content: [Message(content=content)], CONTENTS | LARGE),
    st.builds(lambda content: [Message.user(content)], CONTENTS),
    st.builds(lambda: [Message.stop("error", cut="resumed")]),
)


@st.composite
def histories(draw):
    """Exchanges, most of them plain, in which anything may come up."""
    kinds = st.one_of(st.builds(exchange, st.integers(0, 3)), st.builds(exchange, st.integers(0, 3)), odd_exchanges())
    rows = [row for rows in draw(st.lists(kinds, min_size=1, max_size=8)) for row in rows]
    return [*rows, *draw(st.sampled_from([[], [Message.user("And now?")]]))]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A store in a file, a thread to ask it from, and names of sessions."""
    path = tmp_path_factory.mktemp("talks") / "s.db"
    store = SqliteStore(path, synchronous="normal")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(store):
        yield store, portal, map(str, count())


def spoil(path, session, place, column, value):
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE messages SET {column} = ? WHERE session = ? AND sequence = ?", (value, session, place))


@pytest.mark.parametrize("place", range(4, 8))
@pytest.mark.parametrize(("column", "value"), SPOILT)
def test_a_row_that_another_program_has_spoilt_is_sent_as_ever(lab, column, value, place):
    store, portal, names = lab
    session = next(names)

    async def compare():
        rows = [row for number in range(3) for row in exchange(number)]
        await store.write(session, [*rows, Message.user("And now?")], fence=await store.acquire(session))
        spoil(store.path, session, 1 + place, column, value)
        await check(store, session)

    portal.call(compare)


@given(
    rows=histories(),
    spoilt=st.none() | st.tuples(st.integers(0, 30), st.sampled_from(SPOILT)),
    profile=st.sampled_from([PROFILE, *PROFILES.values()]),
    page_rows=st.sampled_from([1, 2, 5, 256]),
    forked_at=st.integers(1, 30),
)
@settings(max_examples=400, deadline=None)
def test_any_history_is_sent_as_ever(lab, rows, spoilt, profile, page_rows, forked_at):
    store, portal, names = lab
    session, fork = next(names), next(names)

    async def compare():
        await store.write(session, rows, fence=await store.acquire(session))
        if spoilt is not None:
            place, (column, value) = spoilt
            spoil(store.path, session, 1 + place % len(rows), column, value)
        await check(store, session, profile)
        await store.fork(session, fork, at=1 + forked_at % len(rows))
        await store.write(fork, exchange(1), fence=await store.acquire(fork))
        await check(store, fork, profile)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_pages, "PAGE_ROWS", page_rows)
        portal.call(compare)
