"""Each benchmark runs, without any peer, and its JSON has what the documentation says; never what its figures are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.catalog import BENCHMARKS, TWELVE

ROOT = Path(__file__).parents[2]
OURS, FLOOR = "streamagent_direct", "aiohttp_loop"
SESSIONS = {"cpu_us_per_chunk", "sessions_per_s", "rss_kb_per_session", "first_ms", "session_ms"}
LANES = {"streamagent_direct", "streamagent_provider", "streamagent_litellm", "litellm_loop"}


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Children compile LiteLLM once for all tests, also where bytecode is not to be written."""
    return {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("pycache"))}


def benchmark(environment, *arguments):
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170, check=True)


def quick(environment, name, *options):
    small = ("--rounds", "1", "--sessions", "4", "--chunks", "10", "--peers", "none")
    done = benchmark(environment, name, "--json", *small, *options)
    assert done.stderr == ""
    return json.loads(done.stdout)


def targets(found):
    return [check["target"] for check in found["checks"]]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("name", "contenders", "expected"),
    [
        ("chunk_burst", {OURS, FLOOR}, [0.6]),
        ("chunk_paced", {OURS, "streamagent_duplex", FLOOR}, [1.0, 1.5]),
        ("sessions_500", {OURS, FLOOR}, [25, None]),
        ("first_delta", {OURS, FLOOR}, [1.0]),
        ("litellm_lanes", LANES, [None, 0.08, None]),
    ],
)
def test_whole_sessions_are_compared(environment, name, contenders, expected):
    """Each contender gives one sample a round, and ours is held against its target."""
    found = quick(environment, name, "--pace", "1")

    assert found["benchmark"] == name
    assert found["workload"]["sessions"] == 4
    assert set(found["samples"]) == contenders
    assert all([set(sample) for sample in samples] == [SESSIONS] for samples in found["samples"].values())
    assert targets(found) == expected
    assert {"python", "streamagent", "litellm", "aiohttp"} <= set(found["versions"])


@pytest.mark.timeout(180)
def test_a_turn_is_taken_on_histories_of_three_lengths(environment):
    """CPU a stored message is the slope between the shortest and the longest; what is written is told of all."""
    found = quick(environment, "context_growth", "--history", "300")

    assert set(found["samples"]) == {OURS, "aiohttp_rows"}
    [sample] = found["samples"][OURS]
    assert {f"written_kb at {length}" for length in (3, 30, 300)} <= set(sample)
    slope = (sample["cpu_ms at 300"] - sample["cpu_ms at 3"]) * 1000 / 297
    assert sample["cpu_us_per_message"] == pytest.approx(slope)
    assert targets(found) == [10, 1.25, None, None]


def test_a_turn_is_taken_on_a_large_history(environment):
    """Growth of memory is told of us and of the floor."""
    found = quick(environment, "context_200mb", "--history", "20")

    assert found["workload"]["message_bytes"] == 62_500
    assert [check["name"] for check in found["checks"][:2]] == [
        f"peak_mb at 20: {name}" for name in (OURS, "aiohttp_rows")
    ]
    assert targets(found) == [8, None, None]


def test_stage_cost_compares_chains_of_equal_length(environment):
    """Chains of 1, 4 and 6 stages stand beside as many plain generators, each with the target."""
    found = quick(environment, "stage_cost")

    names = [check["name"] for check in found["checks"] if check["target"] == 1.3]
    pairs = [(kind, length) for kind in ("user", "passing") for length in (1, 4, 6)]
    assert names == [f"ns_per_message: {kind} x {length} / plain x {length}" for kind, length in pairs]
    assert all(sample["ns_per_message"] > 0 for [sample] in found["samples"].values())


def test_a_fleet_finds_its_work(environment):
    """More workers find it sooner and get into one another's way more often; the targets are met."""
    found = quick(environment, "fleet")["medians"]

    few, many = found["10 workers, sweep 1 s"], found["100 workers, sweep 1 s"]
    assert few["looks_per_s"] < many["looks_per_s"]
    assert few["pickup_ms_median"] > many["pickup_ms_median"]
    assert few["conflicts_per_prompt"] < many["conflicts_per_prompt"]


@pytest.mark.parametrize(
    ("name", "contenders", "expected"),
    [
        ("idle_10k", {OURS}, [0.5]),
        ("import", {"python", "streamagent"}, [0.15, 40, 0]),
        ("persist", {"streamagent", "aiosqlite", "aiosqlite_shared"}, [0.6, None]),
        ("tool_output", {"streamagent"}, [16, None]),
    ],
)
def test_small_benchmarks_have_their_targets(environment, name, contenders, expected):
    """A check says whether its figure meets its target."""
    found = quick(environment, name, "--megabytes", "2")

    assert set(found["samples"]) == contenders
    assert targets(found) == expected
    checks = [check for check in found["checks"] if check["target"] is not None]
    assert all(check["met"] == (check["value"] <= check["target"]) for check in checks)


def test_open_sessions_stream_some_and_tell_percentiles(environment):
    """Of forty sessions two stream."""
    [sample] = quick(environment, "sessions", "--sessions", "40", "--pace", "1")["samples"][OURS]

    assert (sample["open"], sample["streaming"]) == (40, 2)
    assert sample["first_ms_p50"] <= sample["first_ms_p90"] <= sample["first_ms_p99"] <= sample["session_ms_p99"]


def test_the_twelve_have_the_names_of_the_specification():
    """And each of them, as the three others, says what it is about."""
    assert " ".join(TWELVE) == (
        "chunk_burst chunk_paced sessions_500 first_delta context_growth context_200mb "
        "idle_10k import stage_cost persist litellm_lanes tool_output"
    )
    assert set(BENCHMARKS) - set(TWELVE) == {"sessions", "chunk_parts", "fleet"}


def test_without_json_tables_are_printed(environment):
    """People get the figures, the targets, whether they are met, and who is not there; a pipe gets no progress bar."""
    done = benchmark(environment, "import", "--rounds", "1", "--peers", "none")

    assert "≤ 0.15" in done.stdout
    assert "streamagent 0." in done.stdout
    assert done.stderr == ""
