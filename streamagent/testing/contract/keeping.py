"""What every store does to let sessions be exported, imported and pruned."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from streamagent.errors import ConflictError, LeaseLost, MessageError, SessionBusy
from streamagent.message import Message, afold
from streamagent.records import CallRecord, Mark, Owner

THEN = datetime(2020, 2, 2, 2, 2, 2, 222222, tzinfo=timezone.utc)
LATER = THEN + timedelta(days=1)
ALICE = Owner(id="host:1:alice", ttl=1000.0)
REQUEST = Message(role="tool", type="approval", query={"call": "c", "tool": "refund", "args": {}, "digest": "d"})
GRANT = Message(role="user", type="approval", query={"approval": "gone", "decision": "approve", "always": {}})
CALL = Message(type="tool_call", content="{}", query={"tool": "stock", "id": "call_1", "args": {}})


async def fill(store, *messages, session="s"):
    fence = await store.acquire(session)
    await store.write(session, messages, fence=fence)
    return fence


async def restore(store, *rows, session="s"):
    await store.restore(session, lambda: iter(rows), created_at=THEN, modified_at=LATER)


def numbered(*messages):
    """Messages as a store gives them, without marks."""
    return [(replace(message, sequence=number), None) for number, message in enumerate(messages, 1)]


async def marks(store, session="s"):
    return [mark async for mark in store.marks(session)]


class KeepingContract:
    # what is told of one session

    async def test_info_of_a_session_is_what_the_list_has_and_its_size(self, store):
        await fill(store, Message(content="é" * 50_000), Message(content="abc", more=True))
        [listed] = [info async for info in store.sessions()]
        assert listed.size is None
        assert await store.info("s") == replace(listed, size=100_003)

    @pytest.mark.parametrize("known", [False, True])
    async def test_there_is_no_info_of_a_session_without_messages(self, store, known):
        if known:
            await store.acquire("s")
        assert await store.info("s") is None

    async def test_info_of_a_fork_names_what_it_was_forked_from_and_counts_its_own_bytes_alone(self, store):
        await fill(store, Message(content="shared"))
        await store.fork("s", "f")
        await fill(store, Message(content="own"), session="f")
        info = await store.info("f")
        assert (info.parent, info.size, info.messages) == ("s", 3, 2)
        assert (await store.info("s")).parent is None

    async def test_a_session_is_running_while_a_living_owner_holds_it(self, store):
        fence = await store.acquire("s", owner=ALICE)
        await store.write("s", [Message(content="x")], fence=fence)
        assert (await store.info("s")).running
        assert [info.running async for info in store.sessions()] == [True]
        await store.retire(ALICE.id)
        assert not (await store.info("s")).running

    # marks

    async def test_marks_tell_what_waits_and_what_has_a_key_in_the_order_of_the_rows(self, store):
        await store.enqueue("s", Message(id="sent", role="user", content="hi"), client_key="k1")
        fence = await store.acquire("s")
        await store.admit("s", fence=fence)
        await store.write("s", [Message(content="plain"), CALL, REQUEST, GRANT], fence=fence)
        await store.enqueue("s", Message(id="unnamed", role="user"))
        await store.enqueue("s", Message(id="waits", role="user"), client_key="k2")
        assert await marks(store) == [
            Mark(id="sent", client_key="k1"),
            Mark(id=CALL.id, waits=True),
            Mark(id=REQUEST.id, waits=True),
            Mark(id=GRANT.id, waits=True),
            Mark(id="waits", client_key="k2"),
        ]

    async def test_a_call_with_its_result_has_no_mark(self, store):
        await fill(store, CALL, Message(role="tool", type="tool_result", query={"call": CALL.id}))
        assert await marks(store) == []

    async def test_marks_of_a_fork_are_those_in_its_own_keeping(self, store):
        await store.enqueue("s", Message(role="user", content="hi"), client_key="k")
        await store.admit("s", fence=await store.acquire("s"))
        await store.fork("s", "f")
        await store.enqueue("f", Message(id="own", role="user"), client_key="k")
        assert await marks(store, "f") == [Mark(id="own", client_key="k")]

    @pytest.mark.parametrize("number", [255, 256, 257, 513])
    async def test_any_number_of_marks(self, store, number):
        calls = [replace(CALL, id=f"{n:04}") for n in range(number)]
        await fill(store, *calls)
        await store.enqueue("s", Message(id="waits", role="user"), client_key="k")
        assert [mark.id for mark in await marks(store)] == [*(call.id for call in calls), "waits"]

    # restoring

    async def test_what_was_restored_is_read_as_it_was_and_goes_on(self, store):
        big = Message(id="big", sequence=2, content="a" * 65_536, more=True, query={"k": 10**30}, created_at=THEN)
        rest = replace(big, content="é", query=None, more=False)
        await restore(store, *numbered(Message(content="x", prev="p", attempt=3)), (big, None), (rest, None))
        first, second = await afold(store.read("s"))
        assert (first.prev, first.attempt, first.sequence) == ("p", 3, 1)
        assert second == replace(big, session="s", content="a" * 65_536 + "é", more=False)
        info = await store.info("s")
        assert (info.created_at, info.modified_at, info.messages) == (THEN, LATER, 2)
        await fill(store, Message(content="next"))
        assert [message.sequence for message in await afold(store.read("s"))] == [1, 2, 3]

    async def test_pieces_that_make_a_small_message_are_one(self, store):
        first = Message(sequence=1, content="a", more=True)
        await restore(store, (first, None), (replace(first, content="b", more=False), None))
        assert [message.content async for message in store.read("s")] == ["ab"]

    async def test_what_was_open_is_open_and_can_be_continued(self, store):
        first = Message(sequence=1, content="a", more=True)
        await restore(store, (first, None))
        assert [message.id for message in (await store.unfinished("s")).open] == [first.id]
        await fill(store, replace(first, content="b", more=False))
        assert [message.content async for message in store.read("s")] == ["ab"]

    async def test_only_what_has_a_mark_waits(self, store):
        calls = [replace(CALL, id=name, sequence=number) for number, name in enumerate("ab", 1)]
        await restore(store, (calls[0], Mark(id="a", waits=True)), (calls[1], None))
        assert [call.id for call in (await store.unfinished("s")).calls] == ["a"]

    async def test_a_restored_result_belongs_to_its_call(self, store):
        """A fork before the result finds the call unanswered."""
        await restore(store, *numbered(CALL, Message(role="tool", type="tool_result", query={"call": CALL.id})))
        await store.fork("s", "f", at=1)
        assert [call.id for call in (await store.unfinished("f")).calls] == [CALL.id]
        assert (await store.unfinished("s")).calls == []

    async def test_the_inbox_is_restored_with_its_keys(self, store):
        waiting = Message(id="w", role="user", content="a" * 65_536, more=True)
        mark = Mark(id="w", client_key="k")
        await restore(store, (waiting, mark), (replace(waiting, content="b", more=False), mark))
        [message] = await store.inbox("s")
        assert message.content == "a" * 65_536 + "b"
        again = Message(role="user", content="a" * 65_536 + "b")
        assert (await store.enqueue("s", again, client_key="k")).id == "w"

    async def test_what_is_known_of_calls_is_restored(self, store):
        result = Message(role="tool", type="tool_result", content="15", query={"call": CALL.id})
        record = CallRecord(call=CALL.id, attempts=3, outcome=result)
        await restore(store, (replace(CALL, sequence=1), Mark(id=CALL.id, waits=True)), record)
        [found] = await store.calls("s")
        assert (found.attempts, found.outcome.content, found.outcome.id) == (3, "15", result.id)

    @pytest.mark.parametrize(
        ("rows", "text"),
        [
            ([*numbered(Message(id="a")), (Message(id="a", sequence=2), None)], "a came before"),
            ([*numbered(Message(id="a")), (Message(id="a"), None)], "a came before"),
            ([(Message(id="a", sequence=1, more=True), None), (Message(id="a", sequence=2), None)], "a came before"),
            ([(Message(id="a", sequence=2), None)], "has the sequence 2, where 1 comes next"),
            ([(Message(id="a", sequence=1), Mark(id="a", waits=True))], "none of type 'text' does"),
            (
                [(Message(id=name, sequence=n), Mark(id=name, client_key="k")) for n, name in enumerate("ab", 1)],
                "client key 'k' came before",
            ),
            ([(replace(CALL, sequence=1), None), CallRecord(call=CALL.id, attempts=1)], "that waits for its result"),
            ([CallRecord(call="c", attempts=1)], "no call 'c' that waits"),
            ([(Message(sequence=1, attempt=1 << 63), None)], "attempt"),
            ([(Message(sequence=1, type="a\0"), None)], "NUL"),
        ],
    )
    async def test_rows_that_make_no_session_leave_nothing(self, store, rows, text):
        large = (Message(sequence=1, content="x" * 70_000), None)
        shifted = [
            (replace(row[0], sequence=row[0].sequence and row[0].sequence + 1), row[1])
            if isinstance(row, tuple)
            else row
            for row in rows
        ]
        for given in (rows, [large, *shifted]):
            with pytest.raises(MessageError, match=text if given is rows else None):
                await restore(store, *given)
            assert await store.info("s") is None
            assert [message async for message in store.read("s")] == await store.inbox("s") == []
        await restore(store, *numbered(Message(content="fits")))
        assert [message.content async for message in store.read("s")] == ["fits"]

    @pytest.mark.parametrize("how", ["written", "waiting", "forked"])
    async def test_a_session_that_exists_is_not_replaced(self, store, how):
        await fill(store, Message(content="old"), session="s" if how == "written" else "other")
        if how == "waiting":
            await store.enqueue("s", Message(role="user"))
        if how == "forked":
            await store.fork("other", "s")
        before = await store.info("s")
        with pytest.raises(ConflictError, match="'s' exists"):
            await restore(store, *numbered(Message(content="new")))
        assert await store.info("s") == before

    async def test_a_writer_of_the_deleted_session_loses_its_lease(self, store):
        fence = await fill(store, Message(content="old"))
        await store.delete("s")
        again = await store.acquire("s")
        await restore(store, *numbered(Message(content="new")))
        for late in (fence, again):
            with pytest.raises(LeaseLost):
                await store.write("s", [Message(content="late")], fence=late)

    # deleting what is idle

    async def test_what_is_idle_is_deleted(self, store):
        await fill(store, Message(content="x"), CALL, GRANT)
        assert await store.delete("s", idle=True)
        assert not await store.delete("s", idle=True)

    async def test_what_a_living_owner_holds_is_not_idle(self, store):
        fence = await store.acquire("s", owner=ALICE)
        await store.write("s", [Message(content="x")], fence=fence)
        with pytest.raises(SessionBusy, match="held by host:1:alice"):
            await store.delete("s", idle=True)
        await store.retire(ALICE.id)
        assert await store.delete("s", idle=True)

    async def test_what_has_something_in_its_inbox_is_not_idle(self, store):
        await store.enqueue("s", Message(role="user"))
        with pytest.raises(SessionBusy, match="inbox"):
            await store.delete("s", idle=True)
        assert await store.delete("s")

    async def test_what_waits_for_an_approval_is_not_idle(self, store):
        await fill(store, REQUEST)
        with pytest.raises(SessionBusy, match="approval"):
            await store.delete("s", idle=True)
        assert [message.id async for message in store.read("s")] == [REQUEST.id]
        assert await store.delete("s")

    async def test_shredding_harms_nothing_that_is_kept(self, store):
        await fill(store, Message(content="gone"))
        await store.delete("s")
        await fill(store, Message(content="kept"))
        await store.shred()
        assert [message.content async for message in store.read("s")] == ["kept"]
