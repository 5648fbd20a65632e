"""`streamagent bench`: what it prints, that the target's tools and stages run, and that nothing of it stays."""

import json
from pathlib import Path

import pytest

from .programs import invoke

SHOP = '''
from pathlib import Path

from streamagent import Agent, ModelError, Pipeline, persist, tool, tool_dispatch

PROMPT = "How many mugs?"


def note(name, text):
    with Path(name).open("a") as file:
        print(text, file=file)


@tool
async def stock(product: str) -> int:
    """Units of a product in stock."""
    note("calls.txt", product)
    return 15


async def count(stream):
    async for message in stream:
        if (message.role, message.type) == ("assistant", "text"):
            note("pieces.txt", message.content)
        yield message


stages = [tool_dispatch([stock]), persist(), count]
agent = Agent("openai/gpt-5", tools=[stock], store="own.db", pipeline=Pipeline(reply=stages))
'''
SMALL = ("--sessions", "2", "--chunks", "3", "--rounds", "1")
WARM = 3
KEYS = {"cpu_us_per_chunk", "first_ms", "first_ms_p99", "session_ms", "session_ms_p99", "sessions_per_s", "turns"}


@pytest.fixture(autouse=True)
def _target(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)


def lines(name):
    return Path(name).read_text().splitlines() if Path(name).exists() else []


@pytest.mark.parametrize("model", ["mock", "provider"])
def test_the_figures_of_the_target_stand_beside_those_of_a_plain_agent(model):
    result = invoke("bench", "shop.py", *SMALL, "--model", model, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found.pop("troubles") == {"target": [], "plain": []}
    assert {name: set(figures) for name, figures in found.items()} == {
        "target": KEYS | {"rss_kb_per_session"},
        "plain": KEYS,
        "ratio": KEYS,
    }
    assert all(found["plain"][key] > 0 for key in KEYS)
    assert found["target"]["first_ms"] <= found["target"]["session_ms"]


@pytest.mark.parametrize("model", ["mock", "provider"])
def test_the_stages_and_the_tools_of_the_target_run(model):
    assert invoke("bench", "shop.py", *SMALL, "--model", model, "--pace", "1").exit_code == 0
    assert len(lines("calls.txt")) == 2 * (WARM + 2)  # the plain agent has the tools, too
    assert sum(line.count("word") for line in lines("pieces.txt")) == 3 * (WARM + 2)


def test_without_tools_none_is_called():
    assert invoke("bench", "shop.py", *SMALL, "--no-tools", "--model", "provider").exit_code == 0
    assert lines("calls.txt") == []
    assert len(lines("pieces.txt")) > 0


def test_people_get_a_table_and_nothing_stays():
    before = {path.name for path in Path().iterdir()}
    result = invoke("bench", "shop.py", *SMALL)
    assert result.exit_code == 0, result.output
    shown = result.stdout.splitlines()
    assert shown[0].split() == ["target", "plain", "ratio"]
    assert [line[:32].strip() for line in shown[1:3]] == ["CPU a chunk of text, in µs", "time to the first text, in ms"]
    left = {path.name for path in Path().iterdir()} - before
    assert not {name for name in left if "db" in name}


def test_a_provider_is_not_asked():
    result = invoke("bench", "shop.py", "--model", "openai/gpt-5")
    assert (result.exit_code, "mock or provider" in result.stderr) == (2, True)


def test_an_answer_that_fails_ends_it():
    failing = "raise ModelError('no mugs', kind='connection')\n        yield message"
    Path("shop.py").write_text(SHOP.replace("yield message", failing))
    result = invoke("bench", "shop.py", *SMALL)
    assert (result.exit_code, result.stderr) == (1, "streamagent: no mugs\n")
