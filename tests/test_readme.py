"""Every block of Python in README.md and docs/ runs, as it stands, in the order in which it is read.

A block stands for itself unless `<!-- continues -->` is the line before it: then it goes on with the names of the last.
What a block asks of "openai/…" is answered by a provider on loopback.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamagent.testing.provider import Response, call, finish, scripted_provider, sse, text
from tests.models.lanes import NOISE

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(<!-- continues -->\n)?```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), NOISE]  # the first import of LiteLLM takes seconds


@pytest.fixture(params=[("asyncio", {"debug": True}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return request.param  # LiteLLM and SQLite are asyncio's


@pytest.fixture
async def provider(monkeypatch, tmp_path):
    """A provider that calls the first tool it is offered, then says the result."""

    def answers():
        while True:
            last = provider.requests[-1].json["messages"][-1]
            if last["role"] == "tool":
                yield Response(body=sse(text(f"{last['content']} are left."), finish("stop")))
            else:
                asked = call('{"product": "blue mug"}', id="c1", name="stock")
                yield Response(body=sse(asked, finish("tool_calls")))

    async with scripted_provider(answers()) as provider:
        monkeypatch.setenv("OPENAI_API_BASE", provider.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.chdir(tmp_path)
        yield provider


def chapters(page):
    """The blocks of a page; those that continue one another together."""
    found = []
    for continues, source in BLOCK.findall(page.read_text()):
        if continues:
            found[-1].append(source)
        else:
            found.append([source])
    return found


async def execute(source, names):
    """Run a block that may await at its top level."""
    code = compile(source, "<block>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = eval(code, names)
    if inspect.iscoroutine(done):
        await done


CHAPTERS = [
    pytest.param(blocks, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, blocks in enumerate(chapters(page), 1)
]


@pytest.mark.parametrize("blocks", CHAPTERS)
async def test_a_block_runs(provider, blocks):
    names = {"__name__": "block"}
    for source in blocks:
        await execute(source, names)


async def test_the_first_program_calls_its_tool_and_prints_the_answer(provider, capsys):
    [source] = chapters(ROOT / "README.md")[0]
    await execute(source, {})
    assert capsys.readouterr().out == "15 are left."
    assert len([line for line in source.splitlines() if line.strip()]) == 9
    assert [entry["role"] for entry in provider.requests[-1].json["messages"]] == ["user", "assistant", "tool"]


class Websocket:
    """As much of Starlette's as the README's endpoint uses."""

    def __init__(self, app, *texts):
        self.app = app
        self.path_params = {"session": "alice"}
        self.sent = []
        self._texts = texts

    async def accept(self):
        pass

    async def iter_text(self):
        for item in self._texts:
            yield item

    async def send_text(self, text):
        self.sent.append(text)


async def test_the_endpoint_streams_answers(provider):
    [source] = next(blocks for blocks in chapters(ROOT / "README.md") if "lifespan" in blocks[0])
    names = {}
    await execute(source, names)
    app = SimpleNamespace(state=SimpleNamespace())
    websocket = Websocket(app, "One?", "Two?")
    async with names["lifespan"](app):
        await names["chat"](websocket)
    assert "".join(websocket.sent) == "This is a mock answer to: One?This is a mock answer to: Two?"


def test_every_link_within_the_project_leads_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
        assert [link for link in links if not (page.parent / link).exists()] == [], page


def test_every_name_of_the_walk_is_in_the_code():
    walk = (ROOT / "docs" / "architecture.md").read_text()
    names = re.findall(r"`([\w/]+)\.py:([\w.]+)`", walk)
    assert len(names) > 30
    for path, name in names:
        value = importlib.import_module(f"streamagent.{path.removesuffix('/__init__').replace('/', '.')}")
        for part in name.split("."):
            assert hasattr(value, part), f"{path}.py:{name}"
            value = getattr(value, part)
