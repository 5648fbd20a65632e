"""What every store does when a run begins: it has the session, its prompt waits, it is told how the session stands."""

import anyio
import pytest

from streamagent.errors import ConflictError, InboxFull, MessageError, SessionBusy
from streamagent.message import Message

from .leases import ALICE, BOB, BRIEF, a_call, until_dead
from .rows import contents, text


class BeginningContract:
    async def test_a_run_begins_with_its_prompt_in_the_inbox_behind_what_waits(self, store):
        earlier = await store.enqueue("s", Message.user("before"))
        prompt, rest = Message.user("hi"), [Message.user("and"), Message.user("also")]
        begun = await store.begin_run("s", owner=ALICE, prompt=prompt, rest=rest)
        assert begun.prompt is not None
        assert (begun.prompt.id, begun.prompt.session, begun.prompt.sequence) == (prompt.id, "s", None)
        assert begun.standing == await store.standing("s")
        assert [message.id for message in begun.standing.inbox] == [earlier.id, prompt.id, *(part.id for part in rest)]
        assert begun.standing.left.at_rest
        assert await store.write("s", [text("mine")], fence=begun.fence) == [1]
        with pytest.raises(SessionBusy):
            await store.begin_run("s", owner=BOB)

    async def test_a_run_without_a_prompt_of_its_own_finds_what_waits(self, store):
        waiting = await store.enqueue("s", Message.user("hi"))
        begun = await store.begin_run("s", owner=ALICE)
        assert (begun.prompt, begun.standing.inbox) == (None, [waiting])
        assert (await store.begin_run("new", owner=ALICE)).standing == await store.standing("new")

    async def test_a_run_hears_what_an_earlier_one_left_open(self, store):
        fence = await store.acquire("s", owner=BRIEF)
        await store.write("s", [Message.user("?"), text("half", more=True), a_call()], fence=fence)
        await until_dead(BRIEF)
        begun = await store.begin_run("s", owner=BOB, prompt=Message.user("hi"))
        assert begun.fence > fence
        assert begun.standing == await store.standing("s")
        left = begun.standing.left
        assert (len(left.open), len(left.calls), left.crashes, left.left_open) == (1, 1, 1, True)

    async def test_a_run_that_begins_in_a_fork_hears_so(self, store):
        fence = await store.acquire("s")
        await store.write("s", [text("a"), text("half", more=True)], fence=fence)
        await store.fork("s", "new")
        begun = await store.begin_run("new", owner=ALICE, prompt=Message.user("hi"))
        assert begun.standing == await store.standing("new")
        assert begun.standing.left.forked

    async def test_a_run_that_is_refused_the_session_leaves_no_prompt(self, store):
        fence = await store.acquire("s", owner=ALICE)
        with pytest.raises(SessionBusy) as caught:
            await store.begin_run("s", owner=BOB, prompt=Message.user("hi"), client_key="k")
        assert caught.value.owner == ALICE.id
        assert await store.inbox("s") == []
        assert await store.write("s", [text("mine")], fence=fence) == [1]
        await store.release("s", fence=fence)
        assert (await store.begin_run("s", owner=BOB, prompt=Message.user("ho"), client_key="k")).prompt is not None

    @pytest.mark.parametrize("kind", [ConflictError, MessageError, InboxFull])
    async def test_a_run_whose_prompt_is_refused_does_not_have_the_session(self, store, kind):
        first = await store.enqueue("s", Message.user("hi"), client_key="k")
        refused = {
            ConflictError: {"prompt": Message.user("something else"), "client_key": "k"},
            MessageError: {"prompt": first},
            InboxFull: {"prompt": Message.user("a"), "rest": [Message.user("b")] * 999},
        }
        with pytest.raises(kind):
            await store.begin_run("s", owner=ALICE, **refused[kind])
        assert await store.inbox("s") == [first]
        assert await store.acquire("s", owner=BOB)
        assert (await store.unfinished("s")).crashes == 0

    async def test_a_refused_prompt_leaves_an_unfinished_run_to_others(self, store):
        fence = await store.acquire("s", owner=ALICE)
        await store.write("s", [Message.user("?"), text("half", more=True)], fence=fence)
        await store.release("s", fence=fence, unfinished=True)
        await store.enqueue("s", Message.user("hi"), client_key="k")
        with pytest.raises(ConflictError):
            await store.begin_run("s", owner=ALICE, prompt=Message.user("ho"), client_key="k")
        assert await store.unattended() == ["s"]

    async def test_a_prompt_that_was_admitted_before_comes_back_with_its_sequence(self, store):
        await store.enqueue("s", Message.user("hi"), client_key="k")
        [admitted] = await store.admit("s", fence=await store.acquire("s"))
        begun = await store.begin_run("s", owner=ALICE, prompt=Message.user("hi"), client_key="k")
        assert (begun.prompt, list(begun.standing.inbox)) == (admitted, [])
        assert await contents(store) == ["hi"]

    async def test_of_two_runs_that_begin_at_once_one_has_the_session(self, store):
        begun, refused = [], []

        async def begin(owner):
            try:
                begun.append(await store.begin_run("s", owner=owner, prompt=Message.user(owner.id)))
            except SessionBusy:
                refused.append(owner)

        async with anyio.create_task_group() as tasks:
            for owner in (ALICE, BOB):
                tasks.start_soon(begin, owner)
        assert (len(begun), len(refused)) == (1, 1)
        assert len(await store.inbox("s")) == 1

    async def test_a_caller_that_is_cancelled_while_a_run_begins_does_not_have_the_session(self, store):
        fence = await store.acquire("s", owner=ALICE)
        await store.write("s", [Message.user("?"), text("half", more=True)], fence=fence)
        await store.release("s", fence=fence, unfinished=True)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.begin_run("s", owner=ALICE, prompt=Message.user("hi"))
        await store.flush("s")
        if scope.cancelled_caught:  # a store that never waits is through before
            assert await store.unattended() == ["s"]
            assert await store.acquire("s", owner=BOB)
