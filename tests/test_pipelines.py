"""The programs in `pipelines/`: each runs alone and by the command line, and uses public names only."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import streamagent
from streamagent.models.local import local_available

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted((ROOT / "pipelines").glob("*.py"))
MODEL_TIMEOUT = 170  # seconds; a cold start and three answers of the local model on a busy machine


def program(*args, cwd, timeout=50, stdin=""):
    """Run Python; return what it wrote to standard output."""
    done = subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def cli(*args, cwd, timeout=50, stdin=""):
    return program("-m", "streamagent.cli", *args, cwd=cwd, timeout=timeout, stdin=stdin)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_pipeline_is_short_and_imports_public_names_only(path):
    source = path.read_text()
    assert len(source.splitlines()) < 60
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in imports if "streamagent" in node.module for alias in node.names]
    assert {node.module for node in imports if "streamagent" in node.module} == {"streamagent"}
    assert [name for name in names if not hasattr(streamagent, name)] == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("approval", "\nrefund {'order': 'A17', 'amount': 250.0}? Tool result: Tool execution rejected"),
        ("catalog", "Tool result: "),
        ("chat", "This is a mock answer to: one\nThis is a mock answer to: two\n"),
        ("custom_stage", "user       text       Say something loud.\nassistant  text       THIS IS A MOCK ANSWER"),
        ("harness", "This is a mock answer to: "),
        ("echo", "Is anybody there?\n"),
        ("subagents", "user           text         What products do you have in stock?\n"),
    ],
)
def test_a_pipeline_runs_as_a_program(tmp_path, name, said):
    assert program(ROOT / "pipelines" / f"{name}.py", cwd=tmp_path, stdin="one\ntwo\n").startswith(said)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_pipeline_runs_by_the_command_line(tmp_path, path):
    said = cli("run", path, "hello there", "--db", "a.db", "--session", "a", cwd=tmp_path)
    assert said.strip()
    rows = cli("sessions", "show", "a", "--db", "a.db", "--json", cwd=tmp_path).splitlines()
    assert json.loads(rows[-1])["query"]["reason"] == "stop"


@pytest.mark.timeout(2 * MODEL_TIMEOUT)
def test_a_real_model_calls_a_tool_answers_and_is_continued_by_the_next_process(tmp_path):
    """The demo: llama.cpp through LiteLLM, by the command line, twice in one session."""
    if not local_available():
        if os.environ.get("CI"):
            pytest.fail("the local model's wheels are missing; `make test` installs them")
        pytest.skip("the local model's wheels are not installed")
    ask = ("run", ROOT / "pipelines" / "catalog.py", "What products do you have in stock?", "-m", "local")
    for _ in range(2):
        assert cli(*ask, "--db", "demo.db", "--session", "demo", cwd=tmp_path, timeout=MODEL_TIMEOUT).strip()
    shown = cli("sessions", "show", "demo", "--db", "demo.db", "--json", cwd=tmp_path).splitlines()
    rows = [json.loads(line) for line in shown]
    turns = ["text", "tool_call", "stop", "tool_result", "text", "stop"]
    assert [row["type"] for row in rows] == turns * 2
    assert [row["sequence"] for row in rows] == list(range(1, 13))
    assert [row["query"]["call"] for row in rows if row["type"] == "tool_result"] == [rows[1]["id"], rows[7]["id"]]
    assert not any(row["query"]["is_error"] for row in rows if row["type"] == "tool_result")
