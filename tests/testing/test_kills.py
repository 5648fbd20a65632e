"""A process that ends at any point leaves what the next one goes on with; the effect comes once at most."""

from itertools import count

import anyio
import pytest

from streamagent import ConfigError, Runtime, SqliteStore
from streamagent.testing import check_session, for_each_kill, open_victims

from .killed import PROMPT, agent

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


@pytest.fixture(params=[("asyncio", {"use_uvloop": True})], ids=["uvloop"])
def anyio_backend(request):
    return request.param


async def test_a_kill_at_any_point_leaves_what_the_next_process_goes_on_with(tmp_path):
    path, log = str(tmp_path / "s.db"), tmp_path / "log"
    numbers = count(1)

    async def check(at):
        given = agent(path, str(log))
        async with Runtime(store=SqliteStore(path)) as runtime, given.session("s", runtime=runtime) as session:
            await session.ask(PROMPT, client_key="a1")
            rows = await check_session(runtime.store)
        assert [row.content for row in rows if row.role == "user"] == [PROMPT]
        assert len(log.read_text().splitlines() if log.exists() else []) <= 1
        assert rows[-1].is_final
        for file in tmp_path.iterdir():
            file.rename(tmp_path.parent / f"{tmp_path.name} {next(numbers)}")  # the next child begins anew

    names = await for_each_kill("tests.testing.killed:scenario", path, str(log), check=check)
    assert {"store.write 1 after", "tool ship 1 after", "yield 1 behind persist"} <= {*names}
    assert next(numbers) > len(names)


async def test_a_child_that_fails_by_itself_says_so():
    async def check(at):
        raise AssertionError("it is not asked")

    with pytest.raises(AssertionError, match="ValueError: by itself"):
        await for_each_kill("tests.testing.killed:fails", check=check)


async def test_a_scenario_that_cannot_be_imported_says_why():
    async with open_victims("tests.testing.nowhere:scenario") as victims:
        with pytest.raises(AssertionError, match="No module named"):
            await victims.run()


async def test_children_that_hang_end_with_the_block():
    """The server waits for its child; both are gone when nobody waits for them any more."""
    async with open_victims("tests.testing.killed:hangs") as victims:
        with anyio.move_on_after(1) as scope:
            await victims.run()
    assert scope.cancelled_caught


async def test_a_platform_that_cannot_fork_is_told(monkeypatch):
    monkeypatch.delattr("os.fork")
    with pytest.raises(ConfigError, match="fork"):
        async with open_victims("tests.testing.killed:scenario"):
            raise AssertionError("it does not begin")
