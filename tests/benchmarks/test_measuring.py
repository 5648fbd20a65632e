"""What benchmarks are made of: ratios, targets, contenders that lie or fail, the provider, the peers' folders."""

import json
import os
import socket
import sys
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import orjson
import pytest

from benchmarks import peers
from benchmarks.contender import Contender
from benchmarks.harness import child_environment, gather, run_child, serving, turns
from benchmarks.measure import LOOP, loop, measure, run
from benchmarks.measure_more import measure_turn
from benchmarks.plot import plot, tell_plots
from benchmarks.received import received
from benchmarks.report import Check, Report, Setting, compare, medians, subtract, versions
from benchmarks.server import calling_turn, last_turn
from benchmarks.workload import Workload, stock

SMALL = Workload(sessions=2, chunks=3)


def setting(**changes):
    return Setting(**{"name": "example", "workload": SMALL, "rounds": 1, "tick": print, **changes})


def test_a_ratio_is_taken_within_each_round():
    """What slows one round down slows both contenders: the median is that of the rounds' ratios."""
    samples = {"a": [{"cpu": 2.0}, {"cpu": 30.0}, {"cpu": 4.0}], "b": [{"cpu": 1.0}, {"cpu": 10.0}, {"cpu": 4.0}]}

    assert compare(samples, "a", "b", "cpu", target=1.5) == Check(name="cpu: a / b", value=2.0, target=1.5)
    assert subtract(samples, "a", "b", "cpu") == Check(name="cpu: a - b", value=1.0)
    assert medians(samples) == {"a": {"cpu": 4.0}, "b": {"cpu": 4.0}}


@pytest.mark.parametrize(("target", "met"), [(1.0, True), (0.9, False), (None, None)])
def test_a_target_is_met_up_to_its_very_value(target, met):
    """A figure without a target is neither met nor missed."""
    assert Check(name="figure", value=1.0, target=target).met is met


@pytest.mark.parametrize(("target", "met"), [(1.0, True), (1.1, False)])
def test_a_target_may_be_one_to_reach(target, met):
    """Some figures are to be large."""
    assert Check(name="figure", value=1.0, target=target, at_least=True).met is met


def test_tables_show_what_was_missed_and_who_was_not_there(capsys):
    """A missed target is a plain no; a peer that failed is named beside those that are not installed."""
    checks = [Check(name="cpu of a", value=2.0, target=1.0)]
    asked = setting(peers=["openai", "pi"], absent=["strands"])
    Report(setting=asked, samples={"a": [{"cpu": 2.0}], "openai": [{}]}, checks=checks).show()

    shown = capsys.readouterr().out
    assert "│ cpu of a │     2 │    ≤ 1 │  no │" in shown
    assert "not installed, or failed: strands, pi" in shown


def test_many_measurements_stand_below_one_another(capsys):
    """A table stays as wide as a page."""
    found = {f"figure {number}": 1.0 for number in range(9)}
    Report(setting=setting(), samples={"a": [found]}, checks=[]).show()

    assert "│ figure 8               │ 1 │" in capsys.readouterr().out


def test_another_contender_begins_each_round():
    """Whoever is first in a round has the machine of another moment."""
    assert [name for _, name in turns(["a", "b"], 2)] == ["a", "b", "b", "a"]


def test_a_peer_that_fails_is_left_out_and_one_of_ours_is_an_error():
    """The others are compared all the same."""

    def take(name):
        if name in ("pi", "broken"):
            raise RuntimeError("no")
        return {"cpu": 1.0}

    assert gather(["ours", "pi"], 2, print, take) == {"ours": [{"cpu": 1.0}] * 2}
    with pytest.raises(RuntimeError):
        gather(["broken"], 1, print, take)


def contender(*pieces, tool=True):
    @asynccontextmanager
    async def open_contender(_workload):
        async def run(_name, hear):
            if tool:
                await stock("mug")
            for piece in pieces:
                hear(piece)

        yield Contender(run=run)

    return open_contender


TEXT = "".join(SMALL.words) * 2


def test_a_contender_is_measured_from_what_it_says():
    """The first text counts, not the empty piece before it."""
    sample = run(measure, contender("", TEXT), SMALL)

    assert 0 < sample["first_ms"] <= sample["session_ms"]


@pytest.mark.parametrize(("pieces", "tool"), [([TEXT[:-1]], True), ([TEXT], False)])
def test_a_contender_that_does_less_is_refused(pieces, tool):
    """No sample is better than a wrong one."""
    with pytest.raises(ExceptionGroup if tool else RuntimeError):
        run(measure, contender(*pieces, tool=tool), SMALL)


def test_a_contender_that_leaves_the_history_out_is_refused():
    """The provider is asked what it got."""
    with serving(SMALL) as url:
        task = Workload(sessions=1, chunks=3, history=10, url=url)
        with pytest.raises(RuntimeError, match="not the 20000"):
            run(measure_turn, contender(TEXT), task)


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


def test_the_server_knows_the_second_turn_and_what_it_got_in_whatever_pieces():
    """A body in chunks of HTTP is read as one with a length is, also when the name of the result is cut in two."""
    calling = b"5\r\n{}   \r\n0\r\n\r\n", b"tool_calls"
    last = b'8\r\n"tool_ca\r\n6\r\nll_id"\r\n0\r\n\r\n', b"stop"
    with serving(SMALL) as url, socket.create_connection(("127.0.0.1", urlsplit(url).port)) as client:
        for body, said in (calling, last):
            client.sendall(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + body)
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                answer += client.recv(65536)
            assert b'"finish_reason":"%b"' % said in answer

        assert received(url) == 19


def test_the_server_ends_with_its_reader():
    """Closing its standard input ends the process."""
    with serving(SMALL) as url:
        port = urlsplit(url).port
        socket.create_connection(("127.0.0.1", port)).close()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


SAY_LOOP = """
import asyncio, json
from benchmarks.measure import run

async def say():
    return {type(asyncio.get_running_loop()).__module__.partition(".")[0]: 1.0}

print(json.dumps(run(say)))
"""


@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
def test_all_contenders_run_on_the_loop_of_who_runs_them(monkeypatch, capsys, name):
    """A child whose own environment has uvloop runs without it where the runner has none; the result names the loop."""
    monkeypatch.delenv(LOOP, raising=False)
    if name == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    with child_environment() as environment:
        found = run_child(environment, "-c", SAY_LOOP)
    Report(setting=setting(), samples={"a": [{"cpu": 1.0}]}, checks=[]).show()

    assert (loop(), found) == (name, {name: 1.0})
    assert versions()["loop"] == name
    assert f"loop {name}" in capsys.readouterr().out


def test_a_child_without_uvloop_is_an_error_where_the_others_have_it(monkeypatch):
    """It is not measured on another loop than they are."""
    monkeypatch.setenv(LOOP, "uvloop")
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(ImportError):
        run(stock, "mug")


def test_a_child_that_fails_is_an_error():
    """No sample is better than a wrong one."""
    with pytest.raises(RuntimeError, match="ended with status 3"):
        run_child(dict(os.environ), "-c", "raise SystemExit(3)")


def test_a_peer_is_there_when_its_installation_came_to_its_end(tmp_path, monkeypatch):
    """It has its own Python, and its versions are named."""
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    (tmp_path / "openai").mkdir()
    assert peers.installed() == []

    (tmp_path / "openai" / "installed.json").write_bytes(orjson.dumps({"openai": "1.2.3"}))
    assert peers.installed() == ["openai"]
    assert versions(["openai", "agno"])["openai: openai"] == "1.2.3"
    assert peers.command("openai", "idle")[0] == str(tmp_path / "openai" / "bin" / "python")


@pytest.mark.parametrize(("name", "tools"), [("agno", ["-m venv", "-m pip"]), ("pi", ["npm install"])])
def test_each_peer_is_installed_anew_into_a_folder_of_its_own(tmp_path, monkeypatch, name, tools):
    """What was there is gone, and the versions are written when all else is done."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "old").touch()
    commands = []
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    monkeypatch.setattr(peers, "_run", lambda arguments, folder: commands.append((" ".join(arguments), folder)))
    monkeypatch.setattr(peers, "_versions", lambda _name: {"package": "1.0"})
    peers.install(name)

    assert [tool for command, _ in commands for tool in tools if tool in command] == tools
    assert {folder for _, folder in commands} == {tmp_path / name}
    assert all(package in commands[-1][0] for package in peers.PEERS[name].packages)
    assert (peers.versions(name), (tmp_path / name / "old").exists()) == ({"package": "1.0"}, False)


def test_charts_are_drawn_as_png_and_svg(tmp_path):
    """Bars of one figure, lines over the length of a history."""
    ours = {"streamagent_direct": {"cpu_us_per_chunk": 2.0}}
    bars = {"benchmark": "chunk_burst", "rounds": 1, "medians": ours}
    lines = {"benchmark": "context_growth", "rounds": 1, "medians": {"a": {"cpu_ms at 10": 1.0, "cpu_ms at 100": 2.0}}}
    files = plot([bars, lines], tmp_path)

    assert sorted(file.name for file in files) == sorted(file.name for file in tmp_path.iterdir())
    assert {file.suffix for file in files} == {".png", ".svg"}
    assert all(file.stat().st_size > 1000 for file in files)


def test_a_logarithmic_axis_says_so(tmp_path):
    """Bars whose lengths are no ratios are not to be taken for such."""
    medians = {"streamagent_direct": {"cpu_us_per_chunk": 2.0}, "pi": {"cpu_us_per_chunk": 30.0}}
    report = {"benchmark": "chunk_burst", "rounds": 1, "medians": medians}
    [_, near] = plot([report], tmp_path / "near")
    medians["pi"] = {"cpu_us_per_chunk": 300.0}
    [_, far] = plot([report], tmp_path / "far")

    assert "logarithmic" not in near.read_text()
    assert "logarithmic" in far.read_text()


def test_a_benchmark_without_a_chart_is_named(tmp_path):
    """Whoever asked for charts is told why there is none."""
    assert [*tell_plots([{"benchmark": "tool_output"}], tmp_path)] == ["tool_output has no chart"]
