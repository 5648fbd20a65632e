"""Which sessions are pruned, and which are erased with a user's."""

from datetime import timedelta

import pytest

from streamagent import Agent, Message, Retention, erase, prune, tool
from streamagent.errors import ConfigError, SessionBusy
from streamagent.lineage import ID_LIMIT, askers, child_id
from streamagent.message import new_id
from streamagent.records import Owner
from streamagent.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio

ALICE = Owner(id="host:1:alice", ttl=1000.0)
ALL = Retention(max_sessions=0)


@pytest.fixture
async def store(either_store):
    async with either_store:
        yield either_store


async def fill(store, *sessions, content="x", owner=None):
    for session in sessions:
        fence = await store.acquire(session, owner=owner)
        await store.write(session, [Message(content=content)], fence=fence)


async def ids(store):
    return {info.id async for info in store.sessions()}


async def pruned(store, retention, **options):
    """What goes and why, by the dry run, which must say the same."""
    before = await ids(store)
    told = {item.session.id: item.why for item in await prune(store, retention, dry_run=True, **options)}
    assert await ids(store) == before
    gone = {item.session.id: item.why for item in await prune(store, retention, **options)}
    assert (told, before - await ids(store)) == (gone, gone.keys())
    return gone


# the limits


async def test_sessions_that_were_not_written_to_for_too_long_go(store):
    await fill(store, "s")
    info = await store.info("s")
    for age in (60, 60.0, timedelta(minutes=1)):
        at = info.modified_at + timedelta(seconds=60)
        assert await prune(store, Retention(max_age=age), now=at, dry_run=True) == []
        [found] = await prune(store, Retention(max_age=age), now=at + timedelta(microseconds=1), dry_run=True)
        assert (found.session.id, found.why) == ("s", "age")
    assert await pruned(store, Retention(max_age=0)) == {"s": "age"}


@pytest.mark.parametrize(("number", "gone"), [(0, "abc"), (1, "ab"), (2, "a"), (3, ""), (4, "")])
async def test_all_but_the_latest_ones_go(store, number, gone):
    await fill(store, *"abc")
    assert await pruned(store, Retention(max_sessions=number)) == dict.fromkeys(gone, "count")


async def test_sessions_that_are_too_large_go(store):
    await fill(store, "small", content="é" * 50)
    await fill(store, "large", content="é" * 50 + "x")
    assert await pruned(store, Retention(max_bytes=100)) == {"large": "size"}


async def test_each_limit_counts(store):
    await fill(store, "old", "b")
    await fill(store, "large", content="xx")
    await fill(store, "new")
    assert await pruned(store, Retention(max_age=3600, max_sessions=3, max_bytes=1)) == {
        "old": "count",
        "large": "size",
    }


async def test_only_sessions_with_a_prefix_are_looked_at_and_counted(store):
    await fill(store, "bot/1", "shop/1", "bot/2", "shop/2")
    assert await pruned(store, Retention(max_sessions=1, prefix="bot/")) == {"bot/1": "count"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "without a limit"),
        ({"prefix": "a"}, "without a limit"),
        ({"max_age": -1}, "max_age"),
        ({"max_age": timedelta(seconds=-1)}, "max_age"),
        ({"max_age": float("nan")}, "max_age"),
        ({"max_age": float("inf")}, "max_age"),
        ({"max_age": "30d"}, "max_age is a timedelta or seconds, not '30d'"),
        ({"max_age": True}, "max_age"),
        ({"max_sessions": -1}, "max_sessions"),
        ({"max_sessions": 1.5}, "max_sessions"),
        ({"max_sessions": True}, "max_sessions"),
        ({"max_bytes": -1}, "max_bytes"),
        ({"max_bytes": "1GB"}, "max_bytes"),
        ({"max_age": 1, "prefix": None}, "prefix"),
    ],
)
def test_limits_that_make_no_sense_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        Retention(**options)


# what stays


async def test_what_is_running_stays_unless_asked_for(store):
    await fill(store, "runs", owner=ALICE)
    await fill(store, "rests")
    assert await pruned(store, ALL) == {"rests": "count"}
    assert await pruned(store, ALL, busy=True) == {"runs": "count"}


async def test_what_a_dead_owner_held_goes(store):
    await fill(store, "s", owner=ALICE)
    await store.retire(ALICE.id)
    assert await pruned(store, ALL) == {"s": "count"}


async def test_what_has_something_in_its_inbox_stays_unless_asked_for(store):
    await store.enqueue("s", Message.user("hi"))
    assert await pruned(store, ALL) == {}
    assert await pruned(store, ALL, busy=True) == {"s": "count"}


async def test_what_waits_for_an_approval_stays_unless_asked_for(store):
    @tool(requires_approval=True)
    def refund(order: str) -> str:
        """Give money back."""
        return order

    async with Agent("mock", tools=[refund], store=store).session("s") as session:
        await session.ask("Refund A1.")
        assert await session.pending()
    assert await pruned(store, ALL) == {}
    assert await pruned(store, ALL, busy=True) == {"s": "count"}


async def test_what_gets_busy_while_others_are_deleted_stays(store, monkeypatch):
    await fill(store, "a", "b")
    child = child_id("a", new_id(), 1)
    await fill(store, child)
    delete = store.delete

    async def disturbed(session, **options):
        if session == "b":
            await store.enqueue("a", Message.user("wait!"))
        return await delete(session, **options)

    monkeypatch.setattr(store, "delete", disturbed)
    assert [item.session.id for item in await prune(store, ALL)] == ["b"]
    assert await ids(store) == {"a", child}


# forks


async def test_forks_go_before_what_they_share(store):
    await fill(store, "s")
    await store.fork("s", "f")
    await fill(store, "f")
    await store.fork("f", "g")
    assert [item.session.id for item in await prune(store, ALL)] == ["g", "f", "s"]


async def test_what_a_fork_shares_stays_with_it(store):
    """The parents of a fork that stays, and theirs."""
    await fill(store, "s", "other")
    await store.fork("s", "f")
    await fill(store, "f")
    await store.fork("f", "g")
    assert await pruned(store, Retention(max_sessions=1)) == {"other": "count"}


async def test_a_busy_fork_keeps_its_parent(store):
    await fill(store, "s")
    await store.fork("s", "f")
    await store.enqueue("f", Message.user("hi"))
    assert await pruned(store, ALL) == {}


async def test_a_long_line_of_forks_is_pruned_whole(store):
    await fill(store, "f0")
    for number in range(60):
        await store.fork(f"f{number}", f"f{number + 1}")
        await fill(store, f"f{number + 1}")
    assert len(await pruned(store, ALL)) == 61


async def test_a_fork_that_is_made_meanwhile_keeps_its_parent(store, monkeypatch):
    await fill(store, "s")
    delete = store.delete

    async def disturbed(session, **options):
        await store.fork("s", "f")
        return await delete(session, **options)

    monkeypatch.setattr(store, "delete", disturbed)
    assert await prune(store, ALL) == []
    assert await ids(store) == {"s", "f"}


# sub-agents


async def test_sessions_of_sub_agents_go_with_the_one_that_asked_and_do_not_count(store):
    calls = [new_id() for _ in range(3)]
    child = child_id("old", calls[0], 1)
    grandchild = child_id(child, calls[1], 2)
    await fill(store, "old", "new", child, grandchild, child_id("new", calls[2], 1))
    assert await pruned(store, Retention(max_sessions=1)) == {
        "old": "count",
        child: "sub-agent",
        grandchild: "sub-agent",
    }


async def test_bytes_of_sub_agents_count_for_the_one_that_asked(store):
    child = child_id("s", new_id(), 1)
    await fill(store, "s", child, content="xx")
    assert await pruned(store, Retention(max_bytes=4)) == {}
    assert await pruned(store, Retention(max_bytes=3)) == {"s": "size", child: "sub-agent"}


async def test_a_busy_sub_agent_keeps_the_one_that_asked(store):
    await fill(store, "s")
    await fill(store, child_id("s", new_id(), 1), owner=ALICE)
    assert await pruned(store, ALL) == {}


async def test_the_session_of_a_sub_agent_whose_asker_is_gone_stands_for_itself(store):
    child = child_id("gone", new_id(), 1)
    await fill(store, child)
    assert await pruned(store, ALL) == {child: "count"}


async def test_what_real_sub_agents_leave_is_found(store):
    helper = Agent("mock", name="helper", description="Helps.")
    async with Agent("mock", tools=[helper], store=store).session("s") as session:
        await session.ask("Let the helper help.")
    [child] = await ids(store) - {"s"}
    assert await pruned(store, ALL) == {"s": "count", child: "sub-agent"}


def test_sessions_of_sub_agents_are_known_by_their_names():
    call = new_id()
    long = "x" * ID_LIMIT
    names = ["s", child_id("s", call, 1), child_id(child_id("s", call, 1), call, 12), long, child_id(long, call, 3)]
    others = [f"s:{call}", f"s:{call}:0", f"s:{call}:x", "s:1:1", f"t:{call}:1", f"{'0' * 64}:{call}:1"]
    assert askers([*names, *others]) == {names[1]: "s", names[2]: names[1], names[4]: long}


# erasing


async def erased(store, user):
    before = await ids(store)
    told = {item.session.id: item.why for item in await erase(store, user, dry_run=True)}
    assert await ids(store) == before
    gone = {item.session.id: item.why for item in await erase(store, user)}
    assert (told, before - await ids(store)) == (gone, gone.keys())
    return gone


async def test_a_users_sessions_are_those_of_this_id_or_below_it(store):
    await fill(store, "alice", "alice/1", "alice/2/x", "alice2", "alice:1", "Alice/1", "bob/alice/1", "al")
    assert await erased(store, "alice") == dict.fromkeys(["alice", "alice/1", "alice/2/x"], "user")


async def test_wildcards_are_letters(store):
    await fill(store, "a%/1", "ab/1", "a_/1")
    assert await erased(store, "a%") == {"a%/1": "user"}
    assert await erased(store, "a_") == {"a_/1": "user"}


async def test_what_was_made_of_a_users_sessions_goes_with_them(store):
    """Forks under any id, their forks, the sub-agents of all of them, and forks of those."""
    long = "alice/" + "x" * (ID_LIMIT - 6)
    call = new_id()
    await fill(store, "alice/1", long, child_id(long, call, 1), child_id("fork of fork", call, 1), "bob/1")
    await store.fork("alice/1", "fork")
    await fill(store, "fork")
    await store.fork("fork", "fork of fork")
    await store.fork(child_id("fork of fork", call, 1), "fork of a child")
    assert await erased(store, "alice") == {
        "alice/1": "user",
        long: "user",
        child_id(long, call, 1): "sub-agent",
        "fork": "fork",
        "fork of fork": "fork",
        child_id("fork of fork", call, 1): "sub-agent",
        "fork of a child": "fork",
    }
    assert await ids(store) == {"bob/1"}


async def test_of_a_fork_of_anothers_session_the_fork_alone_is_erased(store):
    await fill(store, "bob/1")
    await store.fork("bob/1", "alice/1")
    assert await erased(store, "alice") == {"alice/1": "user"}


async def test_what_runs_or_waits_is_erased_too(store):
    await fill(store, "alice/1", owner=ALICE)
    await store.enqueue("alice/2", Message.user("hi"))
    assert await erased(store, "alice") == {"alice/1": "user", "alice/2": "user"}


async def test_nothing_is_erased_of_an_unknown_user(store):
    await fill(store, "bob/1")
    assert await erased(store, "alice") == {}


async def test_what_comes_meanwhile_is_erased_too(store, monkeypatch):
    await fill(store, "alice/1")
    delete = store.delete

    async def disturbed(session, **options):
        if session == "alice/1":
            await fill(store, "alice/2")
            await store.fork("alice/1", "fork")
            monkeypatch.setattr(store, "delete", delete)
        return await delete(session, **options)

    monkeypatch.setattr(store, "delete", disturbed)
    assert {item.session.id for item in await erase(store, "alice")} == {"alice/1", "alice/2", "fork"}
    assert await ids(store) == set()


async def test_what_comes_as_fast_as_it_is_erased_is_an_error(store, monkeypatch):
    await fill(store, "alice/1")
    delete = store.delete

    async def disturbed(session, **options):
        await fill(store, f"{session}1")
        return await delete(session, **options)

    monkeypatch.setattr(store, "delete", disturbed)
    with pytest.raises(SessionBusy, match="end its runs"):
        await erase(store, "alice")


@pytest.mark.parametrize("user", ["", "a\nb", "x" * 257, None])
async def test_a_user_is_the_beginning_of_an_id(user):
    with pytest.raises(ConfigError, match="session id"):
        await erase(MemoryStore(), user)
