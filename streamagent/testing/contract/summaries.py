"""What every store sums up: tallies, usage, sessions."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import anyio

from streamagent.message import Message
from streamagent.records import Usage

from .rows import call_and_result, text


class SummaryContract:
    # summaries

    async def test_tally_counts_messages_with_a_sequence(self, store):
        fence = await store.acquire("s")
        await store.write("s", [text("a"), text("b", more=True), Message.stop("stop")], fence=fence)
        await store.enqueue("s", Message.user("waits"))
        assert await store.tally("s") == {("assistant", "text"): 2, ("assistant", "stop"): 1}

    # usage

    async def turn(self, store, session, *, day=2, **query):
        """Store a turn of one call, made on a day of February 2020."""
        made = datetime(2020, 2, day, tzinfo=timezone.utc)
        stop = Message.stop("stop", model="m", **query)
        messages = [Message.user("?"), text("a"), call_and_result()[0], stop]
        fence = await store.acquire(session)
        await store.write(session, [replace(message, created_at=made) for message in messages], fence=fence)

    async def test_usage_sums_up_turns_calls_tokens_and_cost(self, store):
        await self.turn(store, "s", usage={"total_tokens": 5}, cost=0.5)
        failed = [{"error": {"kind": "truncated"}, "usage": {"prompt_tokens": 3, "completion_tokens": 1}}]
        await self.turn(store, "s", usage={"input_tokens": 1, "output_tokens": 2}, cost=0.25, attempts=failed)
        await self.turn(store, "s")
        await self.turn(store, "other", usage={"total_tokens": 100})
        assert await store.usage("s") == Usage(turns=3, tool_calls=3, tokens=12, cost=0.75, uncounted=1)

    async def test_usage_of_all_sessions_since_a_time(self, store):
        for number, day in enumerate([1, 2, 3]):
            await self.turn(store, f"s{number}", day=day, usage={"total_tokens": 10**day})
        await self.turn(store, "s0", day=3, usage={"total_tokens": 1})
        since = datetime(2020, 2, 2, tzinfo=timezone.utc)
        assert (await store.usage(None, since=since)).tokens == 1101
        assert (await store.usage(None, since=since.replace(tzinfo=None))).tokens == 1101
        assert (await store.usage(None, since=since + timedelta(seconds=1))).tokens == 1001
        assert (await store.usage("s0", since=since)).tokens == 1
        assert (await store.usage(None)).tokens == 1111

    async def test_usage_counts_what_a_model_said_and_no_prompts_in_the_inbox(self, store):
        assert await store.usage("s") == await store.usage(None) == Usage()
        await store.enqueue("s", replace(Message.stop("stop"), role="user"))
        fence = await store.acquire("s")
        await store.write("s", [replace(Message.stop("stop"), role="tool"), text("a")], fence=fence)
        refused = Message.stop("budget", limit={"tokens": 1})
        await store.write("s", [refused], fence=fence)
        assert await store.usage("s") == Usage()

    async def test_absurd_counts_are_not_summed(self, store):
        await self.turn(store, "s", usage={"total_tokens": -5}, cost="much", attempts="none")
        assert await store.usage("s") == Usage(turns=1, tool_calls=1, uncounted=1)

    async def test_sessions_are_listed_latest_modified_first(self, store):
        for session in ("a", "b", "c"):
            fence = await store.acquire(session)
            await store.write(session, [text("x")], fence=fence)
        await store.acquire("empty")
        await store.enqueue("a", Message.user("hi"))
        infos = [info async for info in store.sessions()]
        assert [(info.id, info.messages) for info in infos] == [("a", 1), ("c", 1), ("b", 1)]
        assert all(info.created_at <= info.modified_at for info in infos)

    async def test_a_session_was_created_with_its_earliest_message(self, store):
        fence = await store.acquire("s")
        early, late = (datetime(year, 1, 1, tzinfo=timezone.utc) for year in (2001, 2002))
        await store.write("s", [text("x", created_at=late)], fence=fence)
        await store.write("s", [text("y", created_at=early), text("z", created_at=late)], fence=fence)
        [info] = [info async for info in store.sessions()]
        assert info.created_at == early

    async def test_all_of_many_sessions_are_listed_once(self, store):
        async with anyio.create_task_group() as tasks:
            for n in range(600):
                tasks.start_soon(store.enqueue, f"s{n}", Message.user("hi"))
        ids = [info.id async for info in store.sessions()]
        assert len(ids) == len(set(ids)) == 600
