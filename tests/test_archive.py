"""A session that is exported and imported is the same session, in every store; and a broken file leaves nothing."""

import hashlib
import json
from contextlib import aclosing
from dataclasses import replace

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamagent import Agent, Message, export_session, import_session, tool
from streamagent.approvals import Verdict, decide, grants, pending, revoke
from streamagent.errors import ArchiveError, ConfigError, ConflictError
from streamagent.message import afold, utc_now
from streamagent.stores.memory import MemoryStore
from streamagent.stores.sqlite import SqliteStore
from streamagent.testing import ScriptedModel, answer, calls
from streamagent.testing import call as called

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(either_store):
    async with either_store:
        yield either_store


@pytest.fixture(params=["into memory", "into a file"])
async def other(request, anyio_backend_name, tmp_path):
    """Another store; under trio, where no file can be opened, in memory twice."""
    if request.param == "into memory" or anyio_backend_name == "trio":
        yield MemoryStore()
    else:
        async with SqliteStore(tmp_path / "other.db") as other:
            yield other


async def exported(store, session="s"):
    return [line async for line in export_session(store, session)]


async def chunks(lines):
    for line in lines:
        yield line


async def put(store, lines, **options):
    return await import_session(store, chunks(lines), **options)


async def state(store, session="s"):
    """All that a store tells of a session, but its id."""
    unfinished = await store.unfinished(session)
    told = [
        await afold(store.read(session)),
        await store.inbox(session),
        *(getattr(unfinished, name) for name in ("open", "calls", "approvals", "grants")),
        [unfinished.last] if unfinished.last is not None else [],
    ]
    plain = [[replace(message, session=None) for message in messages] for messages in told]
    marks = [mark async for mark in store.marks(session)]
    info = replace(await store.info(session), id="", parent=None, size=None)
    calls = [(known.call, known.attempts, known.outcome and known.outcome.id) for known in await store.calls(session)]
    return plain, marks, info, await store.tally(session), calls


def call(id_, tool="stock"):
    return Message(
        id=id_, type="tool_call", content='{"a":1}', query={"tool": tool, "id": f"c-{id_}", "args": {"a": 1}}
    )


def result(id_, of):
    return Message(id=id_, role="tool", type="tool_result", content="15", query={"call": of, "id": f"c-{of}"})


def asking(id_, of):
    query = {"call": of, "tool": "refund", "id": f"c-{of}", "args": {"a": 1}, "digest": "d", "description": ""}
    return Message(id=id_, role="tool", type="approval", query=query)


async def fill(store, session="s"):
    """A session with one of everything, in the middle of its life."""
    await store.enqueue(session, Message(id="p", role="user", content="hi"), client_key="key 1")
    fence = await store.acquire(session)
    await store.admit(session, fence=fence)
    odd = {"big": 10**40, "half": 0.5, "none": None, "text": "é\u2028\x7f\u202e", "deep": [{"a": [[]]}], "": False}
    rows = [
        Message(id="sys", role="system", content="Be\r\nkind.\t\x01"),
        Message(id="odd", type="data", query=odd, attempt=7, prev="elsewhere"),
        Message(id="big", content="é" * 100_000 + "𝄞"),
        Message(id="cut", content="half an ans", query={"cut": "aborted"}),
        *(call("c1"), result("r1", "c1"), call("c2"), call("c3"), call("c4", "refund"), call("c5", "refund")),
        *(asking("a4", "c4"), asking("a5", "c5")),
        Message.stop("paused", usage={"total_tokens": 3}),
    ]
    await store.write(session, rows, fence=fence)
    await store.start_call(session, "c2", fence=fence)
    for _ in range(2):
        await store.start_call(session, "c3", fence=fence)
    await store.finish_call(session, "c3", result("r3", "c3"), fence=fence)
    await decide(store, session, Verdict(approval="a4", always={"a": 1}, by="bo"))
    await store.admit(session, fence=fence)
    await decide(store, session, Verdict(approval="a5", approve=False, reason="no"))
    await store.enqueue(session, Message(id="w", role="user", content="wait" * 50_000), client_key="key 2")
    await store.enqueue(session, Message(id="v", role="user", type="cancel"))
    await store.write(session, [Message(id="open", content="x" * 70_000, more=True)], fence=fence)


async def test_a_session_comes_back_exactly(store, other):
    await fill(store)
    assert await put(other, await exported(store)) == "s"
    assert await state(other) == await state(store)


async def test_what_is_exported_again_is_the_same_file(store, other):
    await fill(store)
    lines = await exported(store)
    await put(other, lines)
    assert await exported(other) == lines


async def test_a_call_whose_tool_streamed_is_over(store, other):
    @tool
    async def log():
        """Read the log."""
        yield "one "
        yield "line"

    async with Agent(ScriptedModel(calls(called("log")), answer("ok")), tools=[log], store=store).session("s") as s:
        await s.ask("go")
    assert await store.calls("s") == []
    await put(other, await exported(store))
    assert await state(other) == await state(store)


async def test_it_may_be_imported_under_another_id(store):
    await fill(store)
    lines = await exported(store)
    assert await put(store, lines, as_id="copy") == "copy"
    assert await state(store, "copy") == await state(store)
    assert (await exported(store, "copy"))[1:-1] == lines[1:-1]


async def test_a_prompt_under_the_same_client_key_is_the_one_that_was_imported(store, other):
    await fill(store)
    await put(other, await exported(store))
    for key, content, id_ in (("key 1", "hi", "p"), ("key 2", "wait" * 50_000, "w")):
        assert (await other.enqueue("s", Message(role="user", content=content), client_key=key)).id == id_
        with pytest.raises(ConflictError, match=key):
            await other.enqueue("s", Message(role="user", content="other"), client_key=key)


async def test_approvals_and_grants_go_on(store, other):
    await fill(store)
    await put(other, await exported(store))
    assert await grants(other, "s") == await grants(store, "s")
    assert await pending(other, "s") == await pending(store, "s") == []
    [grant] = await grants(other, "s")
    await revoke(other, "s", grant.id)
    assert await grants(other, "s") == []
    with pytest.raises(ConflictError, match="decided otherwise before"):
        await decide(other, "s", Verdict(approval="a5"))


async def test_a_fork_is_exported_as_a_session_of_its_own(store, other):
    await fill(store)
    await store.fork("s", "f", at=9)
    await store.enqueue("f", Message(id="own", role="user"), client_key="key 1")
    lines = await exported(store, "f")
    await put(other, lines)
    assert await state(other, "f") == await state(store, "f")
    assert (await other.info("f")).parent is None
    assert await exported(other, "f") == lines
    assert await other.info("s") is None


async def test_what_was_restored_can_be_forked_and_deleted(store, other):
    await fill(store)
    await put(other, await exported(store))
    for at in range(1, 15):
        for place in (store, other):
            await place.fork("s", f"f{at}", at=at)
        shown = [replace(message, session=None) for message in await afold(other.read(f"f{at}"))]
        assert shown == [replace(message, session=None) for message in await afold(store.read(f"f{at}"))]
        left = [(await place.unfinished(f"f{at}")).calls for place in (store, other)]
        assert left[0] == left[1]
        await other.delete(f"f{at}")
    assert await other.delete("s")
    assert await other.info("s") is None


@pytest.mark.parametrize("size", [1, 7, 65_536])
async def test_the_file_may_be_cut_into_chunks_anywhere(store, size):
    await store.enqueue("s", Message(role="user", content="é" * (100 if size < 9 else 100_000)))
    data = b"".join(await exported(store))
    await put(store, [data[start : start + size] for start in range(0, len(data), size)], as_id="t")
    assert (await state(store, "t"))[0] == (await state(store))[0]


async def test_a_session_of_the_inbox_alone(store, other):
    await store.enqueue("s", Message(id="w", role="user", content=""))
    await put(other, await exported(store))
    assert await state(other) == await state(store)


async def test_a_run_goes_on_where_the_import_ends(store, other):
    @tool
    def stock(product: str) -> int:
        """Units in stock."""
        return len(product)

    agent = Agent("mock", tools=[stock])
    async with agent.with_options(store=store).session("s") as session:
        await session.ask("How many mugs?", client_key="k")
    await put(other, await exported(store))
    async with agent.with_options(store=other).session("s") as session:
        before = [message.id async for message in session.history()]
        assert (await session.ask("How many mugs?", client_key="k")).text
        assert [message.id async for message in session.history()] == before
        await session.ask("And now?")
        assert len([message async for message in session.history()]) > len(before)


# what is refused


@pytest.mark.parametrize("kept", [0, 1, 2, 10, -1])
async def test_a_file_that_was_cut_off_leaves_nothing(store, other, kept):
    await fill(store)
    lines = (await exported(store))[:kept]
    with pytest.raises(ArchiveError, match="get the whole file"):
        await put(other, lines)
    assert await other.info("s") is None
    assert [message async for message in other.read("s")] == await other.inbox("s") == []
    assert [info async for info in other.sessions()] == []


async def test_a_file_that_was_changed_leaves_nothing(store, other):
    await fill(store)
    lines = await exported(store)
    lines[1] = lines[1].replace(b'"hi"', b'"ha"')
    with pytest.raises(ArchiveError, match=r"line \d+: what stands before is not what was exported \(sha256\)"):
        await put(other, lines)
    assert await other.info("s") is None


async def test_ids_that_come_twice_are_refused_with_their_line(store, other):
    """Only the store can tell, in the middle of its transaction."""
    await fill(store)
    lines = await exported(store)
    first, second = json.loads(lines[1]), json.loads(lines[2])
    lines[2] = json.dumps({**second, "id": first["id"]}).encode() + b"\n"
    with pytest.raises(ArchiveError, match="line 3: message p came before"):
        await put(other, resigned(lines))
    assert await other.info("s") is None
    await put(other, await exported(store))


def resigned(lines):
    """Whoever changes a file can change its last line, too."""
    end = json.loads(lines[-1])
    return [*lines[:-1], json.dumps({**end, "sha256": hashlib.sha256(b"".join(lines[:-1])).hexdigest()}).encode()]


async def test_a_file_beyond_the_limit_is_refused_and_one_at_it_is_taken(store):
    await store.enqueue("s", Message(role="user"))
    lines = await exported(store)
    size = sum(map(len, lines))
    with pytest.raises(ArchiveError, match=f"more than {size - 1} bytes; raise max_bytes"):
        await put(store, lines, as_id="t", max_bytes=size - 1)
    assert await put(store, lines, as_id="t", max_bytes=size) == "t"


async def test_a_session_that_exists_is_not_replaced(store):
    await fill(store)
    before = await state(store)
    with pytest.raises(ConflictError, match="session 's' exists; import it under another id"):
        await put(store, await exported(store))
    assert await state(store) == before


@pytest.mark.parametrize("as_id", ["", "x" * 257, "a\nb"])
async def test_an_id_that_is_none_is_refused(store, as_id):
    await store.enqueue("s", Message(role="user"))
    lines = await exported(store)
    with pytest.raises(ConfigError, match="session id"):
        await put(store, lines, as_id=as_id)
    header = {**json.loads(lines[0]), "session": as_id}
    with pytest.raises(ConfigError, match="session id"):
        await put(store, resigned([json.dumps(header).encode() + b"\n", *lines[1:]]))


async def test_there_is_nothing_to_export_of_an_unknown_session(store):
    with pytest.raises(ConfigError, match="no session 'nobody'"):
        await exported(store, "nobody")


@pytest.mark.parametrize("how", ["more", "another", "sent", "deleted"])
async def test_a_session_that_is_written_to_meanwhile_is_not_exported(store, how):
    fence = await store.acquire("s")
    started = Message(content="a", more=True)
    await store.write("s", [Message(content="x"), started], fence=fence)
    with pytest.raises(ConflictError, match="export a fork of it"):
        async with aclosing(export_session(store, "s")) as lines:
            async for _ in lines:
                if how == "more":
                    await store.write("s", [replace(started, content="b")], fence=fence)
                elif how == "another":
                    await store.write("s", [Message(content="y")], fence=fence)
                elif how == "sent":
                    await store.enqueue("s", Message(role="user"))
                elif how == "deleted":
                    await store.delete("s")
                how = "done"


async def test_times_of_a_forged_header_are_put_right(store):
    """Else a session would never be pruned, or its turns would not count."""
    message = Message(role="user")
    await store.enqueue("s", message)
    lines = await exported(store)
    for said, expected in (("9999-01-01", "now"), ("1999-01-01", "message")):
        header = {**json.loads(lines[0]), "modified_at": f"{said}T00:00:00+00:00", "created_at": f"{said}T00:00:00"}
        before = utc_now()
        await put(store, resigned([json.dumps(header).encode() + b"\n", *lines[1:]]), as_id=expected)
        info = await store.info(expected)
        assert before <= info.modified_at <= utc_now() if expected == "now" else info.modified_at == message.created_at
        assert info.created_at <= info.modified_at


async def test_a_cancelled_import_leaves_nothing(store, other):
    await fill(store)
    lines = await exported(store)

    async def stalled(scope):
        for line in lines[:-1]:
            yield line
        scope.cancel()
        await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        await import_session(other, stalled(scope))
    assert scope.cancelled_caught
    assert await other.info("s") is None


rows = st.lists(
    st.builds(
        Message,
        role=st.sampled_from(["system", "user", "assistant", "tool"]),
        type=st.sampled_from(["text", "data", "image", "tool", "unknown"]),
        content=st.text(max_size=20),
        query=st.none() | st.dictionaries(st.text(max_size=5), st.integers() | st.text() | st.none(), max_size=3),
        attempt=st.integers(1, (1 << 63) - 1),
        created_at=st.datetimes(timezones=st.just(utc_now().tzinfo)),
        more=st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@given(rows)
def test_whatever_a_store_takes_comes_back(messages):
    async def main():
        store = MemoryStore()
        await store.write("s", messages, fence=await store.acquire("s"))
        lines = await exported(store)
        await put(store, lines, as_id="t")
        assert (await state(store, "t"))[0] == (await state(store))[0]

    anyio.run(main)
