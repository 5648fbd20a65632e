"""The command line of the benchmarks: what it refuses before anything is measured, and what it asks of a benchmark."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from benchmarks import peers, plot
from benchmarks.catalog import BENCHMARKS
from benchmarks.command_line import main
from benchmarks.report import Report

ROOT = Path(__file__).parents[2]


@pytest.fixture
def call(monkeypatch, capsys):
    """Call the command line; return its exit code, and what it printed."""

    def call(*arguments, what=main):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
        code = 0
        try:
            what()
        except SystemExit as error:
            code = error.code
        return int(code), *capsys.readouterr()

    return call


@pytest.fixture
def settings(monkeypatch):
    """How benchmarks were asked to run: they measure nothing."""
    asked = []

    def measure(setting):
        asked.append(setting)
        return Report(setting=setting, samples={"a": [{"cpu": 1.0}]}, checks=[])

    for name, benchmark in BENCHMARKS.items():
        monkeypatch.setitem(BENCHMARKS, name, replace(benchmark, measure=measure))
    return asked


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--rounds", "0", "a count is 1 or more, not '0'"),
        ("--sessions", "abc", "a count is 1 or more, not 'abc'"),
        ("--pace", "-1", "a pace is 0 milliseconds or more, not '-1'"),
        ("--pace", "nan", "a pace is 0 milliseconds or more, not 'nan'"),
        ("--peers", "pi,langgarph", "there is no peer 'langgarph'; there are openai, "),
    ],
)
def test_what_cannot_be_is_refused(call, settings, option, value, told):
    """A typing error measures nothing, and is told in words."""
    code, _, error = call("chunk_paced", option, value)

    assert (code, settings) == (2, [])
    assert f"argument {option}: {told}" in error


@pytest.mark.parametrize("what", ["list", "install"])
def test_a_peer_that_is_not_known_is_refused(call, what):
    """Those that are known are named, and nothing else."""
    code, _, error = call("peers", what, "nope")

    assert code == 2
    assert f"argument NAME: there is no peer 'nope'; there are {', '.join(peers.PEERS)}\n" in error


def test_only_what_is_to_be_done_with_peers_is_required(call):
    """Without a name it is done with all."""
    code, _, error = call("peers")

    assert code == 2
    assert error.endswith("the following arguments are required: list|install\n")


def test_peers_are_listed(call, tmp_path, monkeypatch):
    """Each on a line, with its versions or without."""
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    (tmp_path / "pi").mkdir()
    (tmp_path / "pi" / "installed.json").write_bytes(orjson.dumps({"pi-ai": "1.2.3"}))
    code, listed, _ = call("peers", "list")

    assert code == 0
    assert listed.splitlines() == [*(f"{name}: not installed" for name in [*peers.PEERS][:-1]), "pi: pi-ai 1.2.3"]


@pytest.mark.parametrize(
    ("name", "missing"),
    [("chunk_burst", ["openai", "pi"]), ("context_growth", ["openai"]), ("import", ["openai"]), ("tool_output", [])],
)
def test_only_peers_that_could_take_part_are_missed(call, settings, tmp_path, monkeypatch, name, missing):
    """One that has nothing of the kind is not said to be absent; where there is none, nothing is said."""
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    _, shown, _ = call(name, "--peers", "openai,pi")
    _, printed, _ = call(name, "--peers", "openai,pi", "--json")

    assert [setting.absent for setting in settings] == [missing] * 2
    assert orjson.loads(printed)["absent"] == missing
    assert ("not installed, or failed" in shown) == bool(missing)


def test_a_peer_takes_part_where_it_can(call, settings, tmp_path, monkeypatch):
    """It is installed and asked for: it is measured."""
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    (tmp_path / "pi").mkdir()
    (tmp_path / "pi" / "installed.json").write_bytes(orjson.dumps({"pi-ai": "1.2.3"}))
    for name in ("chunk_burst", "idle_10k", "import", "persist"):
        call(name, "--peers", "pi")

    assert [setting.peers for setting in settings] == [["pi"], ["pi"], [], []]


@pytest.mark.parametrize(
    ("arguments", "published"),
    [
        (["chunk_paced"], True),
        (["chunk_paced", "--rounds", "1", "--chunks", "200", "--megabytes", "3"], True),
        (["chunk_paced", "--chunks", "100"], False),
        (["chunk_paced", "--pace", "0"], False),
        (["import", "--sessions", "3"], True),
    ],
)
def test_the_result_says_whether_the_workload_is_the_published_one(call, settings, arguments, published):
    """An option that the benchmark does not go by, or one that gives what it has, changes nothing."""
    _, printed, _ = call(*arguments, "--json", "--peers", "none")
    [setting] = settings

    assert orjson.loads(printed)["published"] is published
    assert (setting.workload == BENCHMARKS[arguments[0]].workload) is published


def test_the_help_of_a_benchmark_has_its_own_options(call):
    """What it does not go by is taken, for the sake of `all`, and not shown; its number of rounds is."""
    _, one, _ = call("sessions", "--help")
    _, all_, _ = call("all", "--help")

    assert "--pace" in one
    assert "1 by default" in one
    assert "--megabytes" not in one
    assert "--megabytes" in all_


@pytest.mark.parametrize("what", [main, plot.main])
def test_charts_without_matplotlib_are_refused_before_anything_is_measured(call, settings, monkeypatch, what):
    """The line names the extra."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, error = call("chunk_burst", *["--plot"] * (what is main), what=what)

    assert (code, settings) == (2, [])
    assert error == f"{plot.NO_MATPLOTLIB}\n"
    assert "pip install -e '.[plot]'" in error


def test_a_benchmark_says_that_it_has_no_chart(call, settings):
    """Nothing is drawn, and nobody looks for it."""
    code, _, error = call("tool_output", "--plot", "--peers", "none")

    assert (code, len(settings)) == (0, 1)
    assert error == "tool_output has no chart\n"


@pytest.mark.parametrize("several", [True, False])
def test_charts_are_drawn_from_what_was_saved(call, tmp_path, several):
    """A file holds what `--json` printed: one report, or those of `all`."""
    report = {"benchmark": "fleet"}
    file = tmp_path / "found.json"
    file.write_bytes(orjson.dumps([report] * 2 if several else report))

    assert call(str(file), what=plot.main) == (0, "fleet has no chart\n" * (1 + several), "")


@pytest.mark.parametrize("content", [None, b"no JSON"])
def test_a_file_that_holds_no_report_is_refused(call, tmp_path, content):
    """It is named."""
    file = tmp_path / "found.json"
    if content is not None:
        file.write_bytes(content)
    code, _, error = call(str(file), what=plot.main)

    assert code == 2
    assert f"error: {file}: " in error


def test_what_is_to_be_installed_is_said():
    """An environment without the project's dependencies gets a line, no traceback."""
    program = (
        "import runpy, sys; sys.modules['rich.console'] = None; runpy.run_module('benchmarks', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "rich is not installed; from the checkout: pip install -e '.[bench]'\n"


def test_a_benchmark_that_fails_is_named_and_the_exit_code_says_so(call, monkeypatch):
    """The others run all the same."""

    def fail(_setting):
        raise RuntimeError("no")

    monkeypatch.setitem(BENCHMARKS, "import", replace(BENCHMARKS["import"], measure=fail))
    assert call("import") == (1, "", "import failed: no\n")
