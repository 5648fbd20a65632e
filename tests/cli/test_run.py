"""`streamagent run`, in this process."""

import io
import json
import runpy
from pathlib import Path

import pytest
import typer

from streamagent import ConfigError, ModelError
from streamagent.cli.escape import printable, shorten
from streamagent.cli.exits import exit_codes
from streamagent.cli.target import load_target

from .programs import INTERRUPTED_STORY, PIPELINES, invoke, types

ANSWER = "This is a mock answer to: hello there"


def test_a_plain_prompt_is_answered_on_standard_output():
    result = invoke("run", "hello there")
    assert (result.exit_code, result.stdout) == (0, f"{ANSWER}\n")


def test_a_new_session_is_named_on_standard_error_and_can_be_continued():
    session = invoke("run", "hello there").stderr.split()[1]
    result = invoke("run", "again", "--session", session)
    assert result.stderr == ""
    assert types(session) == ["text", "text", "stop"] * 2


def test_no_stream_prints_the_final_text_alone():
    result = invoke("run", str(PIPELINES / "catalog.py"), "Read products.json", "--no-stream", "--session", "a")
    assert result.stdout.startswith("Tool result: [\n")
    assert "→" not in result.stderr


def test_tool_calls_show_as_they_run_on_standard_error():
    result = invoke("run", str(PIPELINES / "catalog.py"), "Read products.json", "--session", "a")
    assert result.stderr == '→ read {"path":"products.json"}\n← 5 lines\n'
    assert result.stdout.startswith("Tool result: [\n")


def test_json_prints_fragments_one_a_line():
    messages = [json.loads(line) for line in invoke("run", "hello there", "--json").stdout.splitlines()]
    assert [message["type"] for message in messages] == ["text"] * 5 + ["stop"]
    assert "".join(message.get("content", "") for message in messages[1:]) == ANSWER


def test_json_without_stream_prints_whole_messages():
    messages = [json.loads(line) for line in invoke("run", "hello there", "--json", "--no-stream").stdout.splitlines()]
    assert [message.get("content") for message in messages] == ["hello there", ANSWER, None]


def test_the_database_is_chosen_by_option_or_environment(monkeypatch):
    invoke("run", "hi", "--db", "one.db", "--session", "a")
    monkeypatch.setenv("STREAMAGENT_DB", "two.db")
    invoke("run", "hi", "--session", "a")
    assert types("a", "one.db") == types("a", "two.db") == ["text", "text", "stop"]
    assert not Path("streamagent.db").exists()


def test_the_targets_own_store_is_used_unless_a_database_is_given():
    Path("own.py").write_text("from streamagent import Agent\nagent = Agent(store='own.db')\nPROMPT = 'hi'\n")
    invoke("run", "own.py", "--session", "a")
    invoke("run", "own.py", "--session", "b", "--db", "other.db")
    assert types("a", "own.db") == types("b", "other.db")
    assert invoke("sessions", "show", "b", "--db", "own.db").exit_code == 1


def test_a_target_is_a_module_and_an_attribute():
    Path("shop_for_a_test.py").write_text("from streamagent import Agent\nhelper = Agent()\n")
    assert invoke("run", "shop_for_a_test:helper", "hello there").stdout == f"{ANSWER}\n"


def test_the_model_option_replaces_the_targets_model():
    Path("fixed.py").write_text("from streamagent import Agent\nagent = Agent('openai/gpt-5-mini')\n")
    assert invoke("run", "fixed.py", "hello there", "-m", "mock").stdout == f"{ANSWER}\n"


def test_a_function_without_a_default_is_asked_for_the_mock_model():
    Path("made.py").write_text("from streamagent import Agent\ndef agent(model): return Agent(model)\n")
    assert invoke("run", "made.py", "hello there").stdout == f"{ANSWER}\n"


def test_a_function_gets_the_model_of_the_option():
    Path("made.py").write_text("from streamagent import Agent\ndef agent(model='no model'): return Agent(model)\n")
    assert invoke("run", "made.py", "hello there", "-m", "mock").stdout == f"{ANSWER}\n"


def test_a_function_of_nothing_gets_the_model_of_the_option_afterwards():
    Path("made.py").write_text("from streamagent import Agent\ndef agent(): return Agent('openai/gpt-5-mini')\n")
    assert invoke("run", "made.py", "hello there", "-m", "mock").stdout == f"{ANSWER}\n"


@pytest.mark.parametrize("options", [[], ["-m", "mock"]])
@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("def agent(a, b): pass", "made.py: 'agent' cannot be called with a model's name alone"),
        ("def agent(*, model): pass", "made.py: 'agent' cannot be called with a model's name alone"),
        ("agent = dict", "made.py: 'dict' cannot be called with a model's name alone"),
        ("async def agent(model): pass", "made.py has no agent 'agent'"),
    ],
)
def test_a_function_that_takes_something_else_is_a_wrong_use(factory, said, options):
    Path("made.py").write_text(f"{factory}\n")
    result = invoke("run", "made.py", "hi", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nope.py"], "there is no file 'nope.py'"),
        (["no.such.module:agent"], "there is no module 'no.such.module'"),
        (["a prompt", "another"], "'a prompt' is no target"),
        (["empty.py", "hi"], "empty.py has no agent 'agent'"),
        (["empty.py:other", "hi"], "empty.py has no agent 'other'"),
        (["plain.py"], "nothing to ask"),
        ([""], "nothing to ask"),
        (["hi", "-m", "nothing"], "names no model"),
        (["hi", "--session", "\n"], "a session id is"),
    ],
)
def test_a_wrong_use_ends_with_2_and_says_what_is_wrong(args, said):
    Path("empty.py").write_text("agent = 1\n")
    Path("plain.py").write_text("from streamagent import Agent\nagent = Agent()\n")
    result = invoke("run", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_a_file_that_is_no_database_is_an_error():
    Path("bad.db").write_text("not a database, whatever its name says" * 100)
    result = invoke("run", "hi", "--db", "bad.db")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "bad.db" in result.stderr


def test_a_model_that_fails_is_told_on_standard_error():
    Path("bad.jsonl").write_text('{"error": {"kind": "quota", "message": "no money left"}}\n')
    result = invoke("run", "hi", "-m", "replay:bad.jsonl", "--session", "a")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "error: quota: no money left\n")
    assert types("a") == ["text", "stop"]


def test_an_answer_that_a_limit_ended_says_so():
    Path("limited.py").write_text(
        "from streamagent import Agent, Pipeline, persist, rate_limit\n"
        "agent = Agent(pipeline=Pipeline(reply=[rate_limit(messages=0), persist()]))\n"
    )
    result = invoke("run", "limited.py", "hi", "--session", "a")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == 'ended: rate_limit {"messages":0,"scope":"run"}\n'


def record(*deltas: dict, finish: str = "stop") -> str:
    lines = [{"chunk": {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}} for delta in deltas]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
    Path("answer.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in [*lines, {"chunk": end}, {"end": True}])
    )
    return "replay:answer.jsonl"


HOSTILE = "\x1b]0;owned\x07\u202ered\u2028\x9b31m\r"
HARMLESS = r"\u001b]0;owned\u0007\u202ered\u2028\u009b31m\u000d"


def test_what_a_model_says_cannot_control_the_terminal():
    model = record({"reasoning_content": HOSTILE}, {"content": HOSTILE})
    result = invoke("run", "hi", "-m", model, "--session", "a")
    assert result.stdout == f"{HARMLESS}\n"
    assert result.stderr == f"{HARMLESS}\n"


def test_hostile_text_in_json_is_escaped_and_still_the_same():
    result = invoke("run", "hi", "-m", record({"content": HOSTILE}), "--session", "a", "--json", "--no-stream")
    assert HARMLESS[-30:] in result.stdout.replace("\\r", r"\u000d")
    assert json.loads(result.stdout.splitlines()[1])["content"] == HOSTILE


def test_a_hostile_call_is_shown_on_one_harmless_line():
    function = {"name": "read", "arguments": json.dumps({"path": f"{HOSTILE}\n" + "x" * 10_000})}
    model = record({"tool_calls": [{"index": 0, "id": "1", "function": function}]}, finish="tool_calls")
    shown = invoke("run", str(PIPELINES / "catalog.py"), "hi", "-m", model, "--session", "a").stderr.splitlines()
    assert shown[0].startswith("→ read")
    assert "\x1b" not in shown[0]
    assert len(shown[0]) < 220


def test_a_call_with_a_number_beyond_64_bits_is_shown():
    Path("big.py").write_text(
        "from streamagent import Agent, tool\n@tool\ndef double(n: int) -> int:\n    return 2 * n\n"
        "agent = Agent(tools=[double])\n"
    )
    function = {"name": "double", "arguments": '{"n": 1' + "0" * 30 + "}"}
    model = record({"tool_calls": [{"index": 0, "id": "1", "function": function}]}, finish="tool_calls")
    shown = invoke("run", "big.py", "hi", "-m", model, "--session", "a").stderr.splitlines()
    assert shown[:2] == ['→ double {"n":1' + "0" * 30 + "}", "← 2" + "0" * 30]
    assert "1" + "0" * 30 in invoke("sessions", "show", "a").stdout


def test_a_call_that_cannot_be_read_is_shown_as_it_was_written():
    model = record({"tool_calls": [{"index": 0, "id": "1", "function": {"name": "read", "arguments": '{"path'}}]})
    shown = invoke("run", str(PIPELINES / "catalog.py"), "hi", "-m", model, "--session", "a").stderr.splitlines()
    assert shown[0].startswith('→ read {"path [bad_json]')
    assert shown[1].startswith("← error: Not executed")


def test_progress_is_shown_on_standard_error():
    result = invoke("run", str(PIPELINES / "custom_stage.py"), "hello there", "--session", "a")
    assert (result.stdout, result.stderr) == (f"{ANSWER.upper()}\n", "8 words\n")


def test_a_short_result_is_shown_itself():
    Path("short.py").write_text(
        "from streamagent import Agent, tool\n@tool\ndef stock(product: str) -> int:\n    return 15\n"
        "agent = Agent(tools=[stock])\n"
    )
    assert invoke("run", "short.py", "mugs", "--session", "a").stderr == '→ stock {"product":"mugs"}\n← 15\n'


def test_a_sub_agents_calls_are_shown_further_in_and_its_words_are_not():
    shown = invoke("run", str(PIPELINES / "subagents.py"), "hello there", "--session", "a")
    lines = shown.stderr.splitlines()
    assert lines[0].startswith("→ clerk")
    assert lines[1:] == ['  → read {"path":"products.json"}', "  ← 5 lines", "← 5 lines"]
    assert shown.stdout.count("Blue mug") == 1


def test_a_sub_agents_failure_is_not_the_answers():
    Path("failing.py").write_text(
        "from streamagent import Agent, Message, Pipeline, persist\n"
        "async def fail(stream):\n    async for _ in stream:\n"
        "        yield Message(type='reasoning', content='Hm.')\n"
        "        yield Message(type='progress', content='soon')\n        yield Message.stop('error')\n        return\n"
        "child = Agent(pipeline=Pipeline(reply=[fail, persist()]), name='child', description='Fails.')\n"
        "agent = Agent(tools=[child])\n"
    )
    shown = invoke("run", "failing.py", "hello there", "--session", "a")
    assert shown.exit_code == 0
    assert shown.stderr.splitlines()[1:] == ["  soon", "← error: The sub-agent ended with 'error'."]


def test_the_module_is_the_program(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["streamagent", "run", "hello there"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("streamagent.cli", run_name="__main__")
    assert capsys.readouterr().out == f"{ANSWER}\n"


def test_output_that_is_no_file_will_do(monkeypatch):
    monkeypatch.setattr("sys.stdout", io.StringIO())
    with pytest.raises(typer.Exit), exit_codes():
        raise ModelError("broken", kind="protocol")


def test_version_and_help():
    from streamagent import __version__

    assert invoke("--version").stdout == f"streamagent {__version__}\n"
    assert "sessions" in invoke("--help").stdout


def test_printable_keeps_tabs_newlines_and_every_script():
    text = "a\tb\nübermäßig 你好 ☕"
    assert printable(text) == text


@pytest.mark.parametrize(("text", "short"), [("a  b\nc", "a b c"), ("x" * 9, "xxxx…"), ("x    " * 9, "x x…")])
def test_shorten_makes_one_line(text, short):
    assert shorten(text, 5) == short


def test_an_interrupt_cuts_the_answer(tmp_path):
    Path("story.py").write_text(INTERRUPTED_STORY)
    result = invoke("run", "story.py", "--session", "a")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "Once \n", "ended: aborted\n")


def test_a_text_that_is_no_target_cannot_be_loaded():
    with pytest.raises(ConfigError, match="'what is this' is no target"):
        load_target("what is this", model=None, db=None)
