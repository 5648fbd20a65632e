"""What every store does with forks of forks, with forks that cannot be, and when they are deleted."""

import random
from dataclasses import dataclass, field, replace

import pytest

from streamagent.errors import ConfigError, ConflictError, LeaseLost, MessageError
from streamagent.message import Message, new_id

from .rows import call_and_result, contents, fill, in_fork, rows, text


class ForkTreeContract:
    # forks of forks

    async def test_a_fork_of_a_fork_shares_with_both(self, store):
        await fill(store, text("1"), text("2"), text("3"))
        await store.fork("s", "f", at=2)
        await fill(store, text("3'"), text("4'"), session="f")
        for at in range(1, 5):
            await store.fork("f", f"g{at}", at=at)
            assert await contents(store, f"g{at}") == ["1", "2", "3'", "4'"][:at]
        await fill(store, text("4''"), session="g3")
        assert await contents(store, "g3") == ["1", "2", "3'", "4''"]
        assert (await rows(store, "g3"))[3].prev == (await rows(store, "f"))[2].id

    async def test_what_a_fork_closed_is_the_same_in_a_fork_of_it(self, store):
        call, result = call_and_result()
        message = text("half", more=True)
        fence = await fill(store, text("a"), call, message)
        await store.fork("s", "f")
        await store.write("s", [result, replace(message, content=" more", more=False)], fence=fence)
        await store.fork("f", "g")
        assert await rows(store, "g") == in_fork(await rows(store, "f"), "g")
        assert [call.id for call in (await store.unfinished("g")).calls] == [call.id]
        await fill(store, replace(result, id=new_id()), session="f")
        assert len((await store.unfinished("g")).calls) == 1
        await store.fork("f", "h")
        assert (len((await store.unfinished("h")).calls), len(await rows(store, "h"))) == (0, 4)

    async def test_chains_of_forks_have_no_limit_of_depth(self, store):
        await fill(store, text("0"), session="s0")
        for n in range(1, 1200):
            await store.fork(f"s{n - 1}", f"s{n}")
            if n % 4 == 0:
                await fill(store, text(str(n)), session=f"s{n}")
        expected = [str(n) for n in range(0, 1200, 4)]
        assert await contents(store, "s1199") == expected
        assert await store.tally("s1199") == {("assistant", "text"): 300}
        assert (await store.unfinished("s1199")).last.content == "1196"

    @pytest.mark.parametrize("seed", range(8))
    async def test_any_tree_of_forks_reads_as_if_all_had_been_copied(self, store, seed):
        """I1, I2: the store against a model that copies."""
        dice = random.Random(seed)
        model = {"s0": Copied(fence=await store.acquire("s0"))}
        for step in range(120):
            name = dice.choice(list(model))
            session = model[name]
            if session.rows and dice.random() < 0.15:
                at = dice.randint(1, len(session.rows))
                await store.fork(name, f"s{step}x", at=at)
                model[f"s{step}x"] = session.fork(at, fence=await store.acquire(f"s{step}x"))
            else:
                await store.write(name, [session.step(dice)], fence=session.fence)
        for name, session in model.items():
            found = await rows(store, name)
            assert [message.sequence for message in found] == list(range(1, len(session.rows) + 1))
            assert [(message.id, message.content, message.more, message.query) for message in found] == [
                (row.id, row.content, row.more, row.query) for row in session.rows
            ]
            left = await store.unfinished(name)
            assert [call.id for call in left.calls] == session.waiting()
            assert [message.id for message in left.open] == [row.id for row in session.rows if row.more]

    # refusals

    async def test_a_session_without_messages_cannot_be_forked(self, store):
        await store.enqueue("waiting", Message.user("hi"))
        for session in ("nobody", "waiting"):
            with pytest.raises(ConfigError, match=f"'{session}' has no messages"):
                await store.fork(session, "f")
        assert [info.id async for info in store.sessions()] == ["waiting"]

    @pytest.mark.parametrize("at", [-1, 0, 3, 1 << 80])
    async def test_a_fork_at_no_message_is_refused(self, store, at):
        await fill(store, text("1"), text("2"))
        with pytest.raises(ConfigError, match=f"'s' has messages 1 to 2; it cannot be forked at {at}"):
            await store.fork("s", "f", at=at)
        assert await rows(store, "f") == []

    async def test_a_fork_to_a_session_that_exists_is_a_conflict(self, store):
        await fill(store, text("1"))
        await fill(store, text("other"), session="other")
        await store.enqueue("waiting", Message.user("hi"))
        await store.fork("s", "f")
        for new in ("s", "other", "waiting", "f"):
            with pytest.raises(ConflictError, match=f"'{new}' exists"):
                await store.fork("s", new)
        assert await contents(store, "other") == ["other"]

    async def test_a_fork_to_a_name_that_no_database_can_hold_is_refused(self, store):
        await fill(store, text("1"))
        with pytest.raises(MessageError, match="session"):
            await store.fork("s", "a\0b")

    async def test_a_writer_that_had_the_empty_session_loses_its_lease(self, store):
        await fill(store, text("1"))
        fence = await store.acquire("f")
        await store.fork("s", "f")
        with pytest.raises(LeaseLost):
            await store.write("f", [text("late")], fence=fence)
        assert await store.acquire("f") > fence

    async def test_nobody_writes_a_fork_before_it_was_acquired(self, store):
        fence = await fill(store, text("1"))
        await store.fork("s", "f")
        with pytest.raises(LeaseLost):
            await store.write("f", [text("early")], fence=fence)

    async def test_an_id_of_the_shared_part_cannot_enter_the_fork_again(self, store):
        first, last = text("1"), text("2")
        await fill(store, first, last)
        await store.fork("s", "f", at=1)
        await fill(store, text("own"), session="f")
        await store.fork("f", "g")
        for session in ("f", "g"):
            fence = await store.acquire(session)
            with pytest.raises(MessageError, match=first.id):
                await store.write(session, [first], fence=fence)
            with pytest.raises(MessageError, match=first.id):
                await store.enqueue(session, first)
            await store.write(session, [last], fence=fence)
            assert (await contents(store, session))[-1] == "2"

    # deleting

    async def test_a_session_with_forks_cannot_be_deleted_before_them(self, store):
        fence = await fill(store, text("1"), text("2"))
        await store.fork("s", "f", at=1)
        with pytest.raises(ConflictError, match=r"'s' shares its rows with its forks \('f'\); delete them first"):
            await store.delete("s")
        assert await contents(store, "f") == ["1"]
        await store.write("s", [text("3")], fence=fence)
        assert await store.delete("f") is True
        assert await store.delete("s") is True
        assert [info async for info in store.sessions()] == []

    async def test_a_fork_keeps_only_those_whose_rows_it_reads(self, store):
        await fill(store, text("1"))
        await store.fork("s", "f")
        await store.fork("f", "g")
        await fill(store, text("2"), session="f")
        assert await store.delete("f") is True
        assert await contents(store, "g") == ["1"]
        with pytest.raises(ConflictError, match="'g'"):
            await store.delete("s")

    async def test_a_fork_with_nothing_but_unfinished_rows_keeps_its_parent(self, store):
        await fill(store, text("open", more=True))
        await store.fork("s", "f")
        await store.fork("f", "g")
        for session, fork in (("s", "f"), ("f", "g")):
            with pytest.raises(ConflictError, match=f"'{fork}'"):
                await store.delete(session)
        for session in ("g", "f", "s"):
            assert await store.delete(session) is True

    async def test_a_deleted_fork_is_gone_and_may_begin_again_at_one(self, store):
        await fill(store, text("1"), text("2", more=True))
        await store.fork("s", "f")
        fence = await store.acquire("f")
        assert await store.delete("f") is True
        assert await store.delete("f") is False
        with pytest.raises(LeaseLost):
            await store.write("f", [text("late")], fence=fence)
        left = await store.unfinished("f")
        assert (await rows(store, "f"), left.last, left.forked) == ([], None, False)
        assert await store.tally("f") == {}
        await fill(store, text("new"), session="f")
        assert [(row.sequence, row.prev) for row in await rows(store, "f")] == [(1, None)]
        await store.delete("f")
        await store.fork("s", "f", at=1)
        assert await contents(store, "f") == ["1"]


@dataclass
class Copied:
    """A session whose forks are copies."""

    fence: int
    rows: list[Message] = field(default_factory=list)

    def waiting(self):
        answered = {(row.query or {})["call"] for row in self.rows if row.type == "tool_result"}
        calls = [row for row in self.rows if row.type == "tool_call" and not row.more]
        return [row.id for row in calls if row.id not in answered]

    def step(self, dice):
        """Open, continue or close something; return the fragment to be written."""
        content = dice.choice(["", "x", "é" * 100, "y" * 40_000])
        growing = [row for row in self.rows if row.more]
        if growing and dice.random() < 0.5:
            row = dice.choice(growing)
            fragment = replace(row, content=content, more=dice.random() < 0.6, query={"n": dice.random()})
            merged = {**(row.query or {}), **fragment.query}
            whole = replace(row, content=row.content + content, more=fragment.more, query=merged)
            self.rows[self.rows.index(row)] = whole
            return fragment
        waiting, more = self.waiting(), dice.random() < 0.4
        if waiting and dice.random() < 0.5:
            query = {"call": dice.choice(waiting)}
            opened = Message(role="tool", type="tool_result", content=content, more=more, query=query)
        else:
            opened = Message(type=dice.choice(["text", "tool_call"]), content=content, more=more)
        self.rows.append(opened)
        return opened

    def fork(self, at, fence):
        return Copied(fence, [_closed(row) if row.more else row for row in self.rows[:at]])


MARKS = {"tool_call": {"args": None, "invalid": "truncated"}, "tool_result": {"is_error": True}}


def _closed(row):
    return replace(row, more=False, query={**(row.query or {}), "cut": "forked", **MARKS.get(row.type, {})})
