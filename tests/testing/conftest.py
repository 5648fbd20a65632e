"""What tests of many thousands of lives have in common."""

import sys

import pytest

OFTEN = {"test_kills.py", "test_matrix.py", "test_matrix_postgres.py", "test_seeds_1.py", "test_seeds_2.py"}


@pytest.fixture(autouse=True)
def _uncounted(request):
    """Pause the measuring of coverage, which doubles the time of lives that go over the same lines once more."""
    coverage = sys.modules.get("coverage")
    running = coverage and coverage.Coverage.current()
    if running is None or request.path.name not in OFTEN:
        yield
        return
    running.stop()
    yield
    running.start()
