"""Workers that are killed and stopped for a minute; see `soak`."""

import subprocess
import sys

import pytest

from tests.cli.programs import ROOT

pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("soak")]


def test_a_minute_of_kills_leaves_nothing_stuck_and_nothing_done_twice(figure):
    """T6, T12: the checker looks at the rows, at what the tools wrote down, and at what viewers saw."""
    command = [sys.executable, "-m", "tests.fleet.soak", "--seconds", "60", "--workers", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=190)
    assert done.returncode == 0, done.stderr[-10_000:]
    figures = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines())
    figure("soak of 60 s: " + ", ".join(f"{name.strip()} {value}" for name, value in figures.items()))
    assert int(figures["killed"]) > 10
    assert int(figures["prompts"]) > 50
