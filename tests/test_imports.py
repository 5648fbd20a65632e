"""Imports run downwards only, and `import streamagent` is small."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "streamagent"

BESIDE = {"stages", "models", "stores", "tools", "buses"}
COLUMN = [
    "events",
    "follow",
    "pipeline",
    "plan",
    "settle",
    "tasks",
    "lineage",
    "retention",
    "turn",
    "resume",
    "owners",
    "holding",
    "inbox",
    "run",
    "loop",
    "ending",
    "opening",
    "driver",
    "duplex",
    "watch",
    "handover",
    "subagents",
    "block",
    "session",
    "block",
    "runtime",
    "postponed",
    "worker",
]
# From the ground up; a part imports itself and what is below it, and of one layer nobody his neighbour.
LAYERS = [
    {"errors"},
    {"exactjson", "ids"},
    {"message", "calls", "cancellation", "latch", "waiting", "shared"},
    {"records", "talk", "channel"},
    {"protocols"},
    {"hooks", "duties", "attempts"},
    {"prompts"},
    {"_core", "reply"},
    {"structured", "attachments", "approvals", "archive"},
    {"approval_views"},
    BESIDE,
    *({part} for part in COLUMN),
    {"agent"},
    {"__init__", "operators"},
    {"testing"},
    {"cli"},
]
HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}
HEAVY = ("litellm", "aiostream", "pydantic", "aiosqlite", "aiohttp", "jsonschema", "psycopg", "rich", "typer", "nats")

MODULES = sorted(PACKAGE.rglob("*.py"))


def part_of(dotted):
    """The layer's part that `streamagent.<part>.…` belongs to."""
    names = dotted.split(".")
    return names[1] if len(names) > 1 else "__init__"


def name_of(path):
    names = ["streamagent", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(names[:-1] if names[-1] == "__init__" and len(names) > 2 else names)


def for_types_only(tree):
    """The imports under `if TYPE_CHECKING:`, which never run."""
    guards = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {id(inner) for guard in guards for inner in ast.walk(guard)}


def imported(path):
    """The modules of this package that a module imports, lazily or at once."""
    tree = ast.parse(path.read_text())
    skipped = for_types_only(tree)
    package = name_of(path).split(".") if path.name == "__init__.py" else name_of(path).split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in skipped:
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                yield whole if is_module(whole) else module
        elif isinstance(node, ast.Import) and id(node) not in skipped:
            yield from (alias.name for alias in node.names)


def is_module(dotted):
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def arrows(path):
    source = part_of(name_of(path))
    return [(source, part_of(target)) for target in imported(path) if target.split(".")[0] == "streamagent"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_downwards(path):
    wrong = [arrow for arrow in arrows(path) if arrow[0] != arrow[1] and HEIGHT[arrow[1]] >= HEIGHT[arrow[0]]]
    assert wrong == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_column_knows_protocols_only(path):
    wrong = [(source, target) for source, target in arrows(path) if source in COLUMN and target in BESIDE]
    assert wrong == []


def test_the_test_kit_is_imported_by_its_commands_alone():
    places = {source for path in MODULES for source, target in arrows(path) if target == "testing" != source}
    users = [path.name for path in (PACKAGE / "cli").glob("*.py") if ("cli", "testing") in arrows(path)]
    assert (places, sorted(users)) == ({"cli"}, ["bench.py", "sim.py"])


def test_an_arrow_that_runs_up_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    (tmp_path / "protocols.py").write_text("def lazy():\n    from .pipeline import Pipeline\n")
    (tmp_path / "errors.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .run import Run\n"
    )
    assert arrows(tmp_path / "protocols.py") == [("protocols", "pipeline")]
    assert arrows(tmp_path / "errors.py") == []


def test_the_core_neither_waits_nor_reads_a_clock():
    forbidden = {"anyio", "asyncio", "time", "trio"}
    used = {name.split(".")[0] for path in (PACKAGE / "_core").glob("*.py") for name in imported(path)}
    trees = [ast.parse(path.read_text()) for path in (PACKAGE / "_core").glob("*.py")]
    waits = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Await | ast.AsyncFunctionDef)]
    assert (used & forbidden, waits) == (set(), [])


@pytest.mark.parametrize(
    ("library", "home"), [("litellm", "models/litellm.py"), ("aiostream", "operators.py"), ("nats", "buses/")]
)
def test_a_heavy_library_is_imported_in_one_place(library, home):
    places = [
        str(path.relative_to(PACKAGE)) for path in MODULES if library in {name.split(".")[0] for name in imported(path)}
    ]
    assert places
    assert {place for place in places if not place.startswith(home)} == set()


PROBE = """
import json, sys
import streamagent
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"megabytes": int(peak.split()[1]) / 1024, "modules": list(sys.modules)}))
"""


def test_importing_the_package_is_small_and_loads_nothing_heavy():
    """What it costs in CPU is measured by `python -m benchmarks import`."""
    done = subprocess.run([sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    found = json.loads(done.stdout)
    assert [name for name in HEAVY if name in found["modules"]] == []
    assert found["megabytes"] <= 40
