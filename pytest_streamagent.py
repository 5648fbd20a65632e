"""The pytest plugin of `streamagent.testing`: its fakes and checks as fixtures.

It stands beside the package, not in it: pytest imports a plugin in every run, also where nobody uses this one, and
importing the package takes time. The fixtures import what they give when they are asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from trio.testing import MockClock

    from streamagent import MemoryStore
    from streamagent.testing import FaultPoints, ScriptedModel

pytest.register_assert_rewrite("streamagent.testing.contract")


@pytest.hookimpl(tryfirst=True)  # before the parameters of a suite's own `anyio_backend` are looked up
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for the virtual clock in virtual time, and not on the backends of the others."""
    if "virtual_clock" in metafunc.fixturenames:
        from streamagent.testing import virtual_time

        backend = pytest.param(virtual_time(), id="virtual")
        metafunc.definition.add_marker(pytest.mark.parametrize("anyio_backend", [backend]))


@pytest.fixture
def virtual_clock(anyio_backend: tuple[str, dict[str, Any]]) -> MockClock:
    """Give the clock, which jumps to the next thing that is waited for; see `streamagent.testing.virtual_time`."""
    clock: MockClock = anyio_backend[1]["clock"]
    return clock


@pytest.fixture
def fault_points() -> Iterator[FaultPoints]:
    """Give a plan that counts the points which the test passes; `fault_points.at = 3` lets it act at the third."""
    from streamagent.testing import FaultPoints

    with FaultPoints() as points:
        yield points


@pytest.fixture
def scripted_model() -> type[ScriptedModel]:
    """Give the class `streamagent.testing.ScriptedModel`, which is called with the turns."""
    from streamagent.testing import ScriptedModel

    return ScriptedModel


@pytest.fixture
def memory_store() -> MemoryStore:
    """Give a new and empty store."""
    from streamagent import MemoryStore

    return MemoryStore()


@pytest.fixture
def check_invariants() -> Callable[..., Any]:
    """Give `streamagent.testing.check_session`, which is awaited with a store and a session."""
    from streamagent.testing import check_session

    return check_session


@pytest.fixture
async def no_leaks() -> AsyncIterator[None]:
    """Check at the end of an async test that nothing of it lives on; see `streamagent.testing.assert_no_leaks`."""
    from streamagent.testing import assert_no_leaks

    async with assert_no_leaks():
        yield
