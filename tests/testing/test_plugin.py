"""The fixtures, in a pytest of their own; a suite that uses none of them does not import the package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USES_ALL = """
import anyio
import pytest

from streamagent import Agent
from streamagent.testing import Crash, answer, check_session, faulty, point

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


async def test_an_agent(scripted_model, memory_store, check_invariants, no_leaks):
    agent = Agent(scripted_model(answer("Hi.")), store=memory_store)
    async with agent.session("s") as session:
        assert (await session.ask("Hello?")).text == "Hi."
    assert len(await check_invariants(memory_store, "s")) == 3


async def test_points(fault_points, memory_store):
    point("mine")
    fault_points.at = 2
    with pytest.raises(Crash):
        await faulty(memory_store, fault_points).acquire("s")
    assert fault_points.passed == ["mine", "store.acquire 1 before"]


async def test_a_day_passes(virtual_clock):
    await anyio.sleep(86_400)
    assert virtual_clock.current_time() >= 86_400
"""
LEAKS = """
import pytest

pytestmark = pytest.mark.anyio
LEFT = []


async def numbers():
    yield 1


async def test_it(no_leaks):
    LEFT.append(numbers())
    await anext(LEFT[-1])
"""
USES_NONE = """
import sys


def test_it():
    assert not [name for name in sys.modules if name.split(".")[0] == "streamagent"]
"""


def run(folder, source):
    """Run a test file with the plugin alone, whether or not the package is installed."""
    (folder / "test_it.py").write_text(source)
    plugins = ["-p", "no:streamagent", "-p", "pytest_streamagent", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "test_it.py"],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_the_fixtures_do_what_they_say(tmp_path):
    done = run(tmp_path, USES_ALL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_a_leak_fails_the_test_that_asks(tmp_path):
    done = run(tmp_path, LEAKS)
    assert re.search(r"left behind:\n.*async generator numbers\n", done.stdout), done.stdout
    assert "2 passed, 2 errors" in done.stdout


def test_a_suite_that_uses_none_imports_nothing(tmp_path):
    done = run(tmp_path, USES_NONE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_found_by_its_entry_point():
    written = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nstreamagent = "pytest_streamagent"' in written


@pytest.mark.anyio
async def test_nobody_may_make_a_store_but_the_subclass():
    from streamagent.testing.contract import StoreContract

    class TestMine(StoreContract):
        pass

    with pytest.raises(NotImplementedError, match="TestMine needs: async def make_store"):
        await TestMine().make_store()
