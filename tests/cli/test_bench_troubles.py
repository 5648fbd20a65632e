"""`streamagent bench` of targets that do not work: figures do not count, and it says why."""

import io
import json
from pathlib import Path

import pytest

from streamagent.cli.progress import ProgressLine

from .programs import invoke

TARGET = '''
import anyio
from streamagent import Agent, Pipeline, persist, tool, tool_dispatch

@tool
async def stock(product: str) -> int:
    """Units of a product in stock."""
    {tool}

async def stage(stream):
    async for message in stream:
        {stage}

agent = Agent(tools=[stock], pipeline=Pipeline(reply={reply}))
'''
RUNS = "[tool_dispatch([stock]), persist(), stage]"
SMALL = ("--sessions", "2", "--chunks", "3", "--rounds", "2")


def bench(*args, tool="return 15", stage="yield message", reply=RUNS):
    Path("target.py").write_text(TARGET.format(tool=tool, stage=stage, reply=reply))
    return invoke("bench", "target.py", *SMALL, *args)


def told(result):
    return [line for line in result.stdout.splitlines() if line.startswith(("target:", "plain:", "target and"))]


def test_of_a_target_that_works_nothing_is_said():
    result = bench()
    assert (result.exit_code, told(result)) == (0, []), result.output
    assert json.loads(bench("--json").stdout)["troubles"] == {"target": [], "plain": []}


def test_sessions_without_text_have_no_time_to_it():
    result = bench(stage="if message.type != 'text': yield message")
    assert (result.exit_code, told(result)) == (1, ["target: 4 of 4 sessions gave no text"])
    [first] = [line for line in result.stdout.splitlines() if line.startswith("time to the first text")]
    assert len(first.removeprefix("time to the first text, in ms").split()) == 1  # the plain agent's


def test_sessions_without_a_stop_are_told():
    result = bench(stage="if message.type != 'stop': yield message")
    assert (result.exit_code, told(result)) == (1, ["target: 4 of 4 sessions ended without a stop"])


def test_another_number_of_turns_is_told():
    result = bench(reply="[persist()]")
    assert result.exit_code == 1
    assert told(result) == [
        "target: 4 of 4 sessions gave no text",
        "target: 4 of 4 sessions ended with the reason ended",
        "target: 4 of 4 calls had an error as their result: Not executed: the run ended before this call.",
        "target and plain took 1 and 2 turns a session: the ratios compare other work",
    ]


def test_calls_that_fail_are_told_and_the_sessions_count():
    result = bench(tool="raise KeyError('mugs')")
    failed = "4 of 4 calls had an error as their result: KeyError: 'mugs'"
    assert (result.exit_code, told(result)) == (0, [f"target: {failed}", f"plain: {failed}"])


def test_programs_get_the_same_and_figures_that_could_not_be_measured_are_missing():
    result = bench("--json", stage="if False: yield message")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert found["troubles"] == {
        "target": [
            {"count": 4, "of": 4, "what": "sessions gave no text"},
            {"count": 4, "of": 4, "what": "sessions ended without a stop"},
        ],
        "plain": [],
    }
    assert [name for name in ("target", "plain", "ratio") if "first_ms" in found[name]] == ["plain"]


def test_calls_that_wait_for_an_approval_have_no_result():
    Path("target.py").write_text(
        TARGET.replace("@tool", "@tool(requires_approval=True)").format(tool="pass", stage="yield message", reply=RUNS)
    )
    result = invoke("bench", "target.py", *SMALL)
    assert result.exit_code == 1
    assert told(result)[:3] == [
        "target: 4 of 4 sessions gave no text",
        "target: 4 of 4 sessions ended with the reason paused",
        "target: 4 of 4 calls had no result",
    ]


def test_a_stage_that_raises_is_shown_once_with_its_own_frames():
    result = bench(stage="raise ValueError('no mugs')\n        yield")
    assert result.exit_code == 1
    assert [line for line in result.stderr.splitlines() if line.startswith(("  File", "ValueError"))] == [
        f'  File "{Path("target.py").resolve()}", line 12, in stage',
        "ValueError: no mugs",
    ]


def test_a_stage_that_is_no_generator_is_named():
    result = bench(reply="[persist(), returning]", stage="yield message\n\nasync def returning(stream):\n    return 1")
    assert (result.exit_code, "stage returning returned" in result.stderr) == (2, True)


def test_sessions_that_do_not_end_are_named():
    result = bench("--timeout", "0.2", stage="await anyio.sleep_forever()\n        yield")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "streamagent: 3 of 3 sessions have not ended within 0.2 s: warm-up 0, warm-up 1, warm-up 2; "
        "--timeout gives them longer\n"
    )


def test_it_says_what_it_does(monkeypatch):
    shown = []
    monkeypatch.setattr(ProgressLine, "show", lambda _, text: shown.append(text))
    assert bench().exit_code == 0
    assert shown[:2] == [
        "target, round 1 of 2: warm-up, 0 of 3 sessions have ended, 0 s",
        "target, round 1 of 2: 0 of 2 sessions have ended, 0 s",
    ]
    assert "plain, round 2 of 2: 0 of 2 sessions have ended, 0 s" in shown


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("made", "written"), [(Terminal, "\rmany words\rfew       \r   \r"), (io.StringIO, "")])
def test_the_line_is_written_over_and_gone_at_the_end(made, written, monkeypatch):
    stderr = made()
    monkeypatch.setattr("sys.stderr", stderr)
    with ProgressLine() as line:
        line.show("many words")
        line.show("few")
    assert stderr.getvalue() == written
