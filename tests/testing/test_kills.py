"""A process that ends at any point leaves what the next one goes on with; the effect comes once at most."""

import os
from itertools import count

import pytest

from streamagent import Runtime, SqliteStore
from streamagent.testing import check_session, for_each_kill

from .killed import PROMPT, agent

STEP = int(os.environ.get("STREAMAGENT_KILL_STEP", "6"))  # 1: every point, in a minute

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

    names = await for_each_kill("tests.testing.killed:scenario", path, str(log), check=check, step=STEP)
    assert {"store.write 1 after", "tool ship 1 after", "yield 1 behind persist"} <= {*names}
    assert next(numbers) > len(names) // STEP


async def test_a_child_that_fails_by_itself_says_so():
    async def check(at):
        raise AssertionError("it is not asked")

    with pytest.raises(AssertionError, match="ValueError: by itself"):
        await for_each_kill("tests.testing.killed:fails", check=check)
