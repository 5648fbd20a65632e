"""Errors of the target's own code: its frames are shown, and no others."""

from pathlib import Path

from .programs import invoke

RAISING = """
from streamagent import Agent, Pipeline

async def stage(stream):
    async for message in stream:
        raise ValueError("\\x1b")
        yield message

agent = Agent(pipeline=Pipeline(reply=[stage]))
"""


def test_an_error_in_the_target_itself_is_not_hidden():
    Path("broken.py").write_text("import no_such_module_of_the_target\n")
    Path("wrong_for_a_test.py").write_text("import no_such_module_of_the_target\n")
    for target, file in (("broken.py", "broken.py"), ("wrong_for_a_test:agent", "wrong_for_a_test.py")):
        result = invoke("run", target, "hi")
        assert result.exit_code == 1
        assert [line for line in result.stderr.splitlines() if line.startswith("  File")] == [
            f'  File "{Path(file).resolve()}", line 1, in <module>'
        ]
        assert result.stderr.endswith("ModuleNotFoundError: No module named 'no_such_module_of_the_target'\n")


def test_a_target_that_cannot_be_parsed_is_shown_and_nothing_else():
    Path("unparsed.py").write_text("agent = (\n")
    result = invoke("run", "unparsed.py", "hi")
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 4), result.stderr
    assert f'File "{Path("unparsed.py").resolve()}", line 1' in result.stderr


def test_an_error_of_a_stage_has_the_frames_of_the_target():
    Path("raising.py").write_text(RAISING)
    result = invoke("run", "raising.py", "hi")
    assert result.exit_code == 1
    shown = result.stderr.partition("Traceback")[2].splitlines()
    assert [line for line in shown if line.startswith("  File")] == [
        f'  File "{Path("raising.py").resolve()}", line 6, in stage'
    ]
    assert shown[-1] == r"ValueError: \u001b"


def test_an_error_of_our_own_is_shown_whole(monkeypatch):
    def broken(*_args, **_options):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("streamagent.cli.target.load_target", broken)
    monkeypatch.setattr("streamagent.cli.failures._is_targets", lambda _: False)
    assert isinstance(invoke("run", "hi").exception, RuntimeError)


def test_a_coroutine_that_a_factory_returns_is_no_agent():
    Path("later.py").write_text("async def make():\n    pass\n\nagent = lambda: make()\n")
    result = invoke("run", "later.py", "hi")
    assert (result.exit_code, "has no agent" in result.stderr) == (2, True)
