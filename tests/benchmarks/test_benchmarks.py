"""Each benchmark runs, and its JSON has what the documentation says; never what its figures are."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.harness import run_child, serving
from benchmarks.report import Check, Report, compare, medians
from benchmarks.server import calling_turn, last_turn
from benchmarks.workload import Workload

ROOT = Path(__file__).parents[2]
WHOLE_SESSIONS = ("streamagent_sessions", "litellm_loop", "aiohttp_loop")


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Children compile LiteLLM once for all tests, also where bytecode is not to be written."""
    return {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("pycache"))}


def benchmark(environment, name, *options):
    command = [sys.executable, "-m", "benchmarks", name, "--rounds", "1", *options]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170, check=True)


def quick(environment, name):
    done = benchmark(environment, name, "--json", "--sessions", "5", "--chunks", "10")
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["sessions", "chunk_burst", "chunk_paced"])
def test_whole_sessions_are_compared_with_litellm_and_aiohttp(environment, name):
    """Each contender gives one sample a round, and the ratio to LiteLLM has the target."""
    found = quick(environment, name)

    assert found["benchmark"] == name
    assert found["workload"] == {"sessions": 5, "chunks": 10, "pace_ms": 5 if name == "chunk_paced" else 0}
    assert set(found["samples"]) == set(WHOLE_SESSIONS)
    for samples in found["samples"].values():
        assert [set(sample) for sample in samples] == [{"cpu_us_per_chunk", "sessions_per_s", "rss_kb_per_session"}]
    assert [check["target"] for check in found["checks"]] == [1.15, None, None]
    assert {"python", "streamagent", "litellm", "aiohttp"} <= set(found["versions"])


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
    ("name", "contenders", "targets"),
    [("idle", {"streamagent"}, [0.5]), ("import", {"python", "streamagent"}, [0.15, 40])],
)
def test_small_benchmarks_check_absolute_figures(environment, name, contenders, targets):
    """A figure that needs no peer has a target of its own."""
    found = quick(environment, name)

    assert set(found["samples"]) == contenders
    assert [check["target"] for check in found["checks"]] == targets
    assert all(check["met"] == (check["value"] <= check["target"]) for check in found["checks"])


def test_without_json_tables_are_printed(environment):
    """People get the figures, the targets and whether they are met; a pipe gets no progress bar."""
    done = benchmark(environment, "import")

    assert "≤ 0.15" in done.stdout
    assert "streamagent 0." in done.stdout
    assert done.stderr == ""


def test_a_count_of_zero_is_refused(environment):
    """An impossible workload is a usage error."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        benchmark(environment, "idle", "--sessions", "0")

    assert caught.value.returncode == 2
    assert "--sessions" in caught.value.stderr


def test_a_ratio_is_taken_within_each_round():
    """What slows one round down slows both contenders: the median is that of the rounds' ratios."""
    samples = {"a": [{"cpu": 2.0}, {"cpu": 30.0}, {"cpu": 4.0}], "b": [{"cpu": 1.0}, {"cpu": 10.0}, {"cpu": 4.0}]}

    assert compare(samples, "a", "b", "cpu", target=1.5) == Check(name="cpu: a / b", value=2.0, target=1.5)
    assert medians(samples) == {"a": {"cpu": 4.0}, "b": {"cpu": 4.0}}


@pytest.mark.parametrize(("target", "met"), [(1.0, True), (0.9, False), (None, None)])
def test_a_target_is_met_up_to_its_very_value(target, met):
    """A figure without a target is neither met nor missed."""
    assert Check(name="figure", value=1.0, target=target).met is met


def test_tables_show_what_was_missed(capsys):
    """A missed target is a plain no."""
    samples = {"a": [{"cpu": 2.0}]}
    checks = [Check(name="cpu of a", value=2.0, target=1.0)]

    Report(benchmark="example", workload=Workload(sessions=1, chunks=1), samples=samples, checks=checks).show()

    assert "│ cpu of a │     2 │    ≤ 1 │  no │" in capsys.readouterr().out


def test_chunks_are_as_long_as_a_providers_and_no_two_are_equal():
    """The text is 222 to 230 bytes a chunk, and the call comes with its arguments in four pieces."""
    words = Workload(sessions=1, chunks=100).words
    first = [json.loads(data) for data in calling_turn(words) if data != b"[DONE]"]
    texts = [data for data in last_turn(words) if b" word" in data]
    deltas = [choice["delta"] for chunk in first for choice in chunk["choices"]]
    calls = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]

    assert all(222 <= len(text) <= 230 for text in texts)
    assert len(set(texts)) == 100
    assert json.loads("".join(call["function"]["arguments"] for [call] in calls)) == {"product": "blue mug"}
    assert len(calls) == 5


def test_the_server_ends_with_its_reader():
    """Closing its standard input ends the process."""
    with serving(Workload(sessions=1, chunks=1)) as url:
        port = urlsplit(url).port
        socket.create_connection(("127.0.0.1", port)).close()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_child_that_fails_is_an_error():
    """No sample is better than a wrong one."""
    with pytest.raises(RuntimeError, match="ended with status 3"):
        run_child(dict(os.environ), "-c", "raise SystemExit(3)")
