"""The peers: where they are installed, and what runs them. `python -m benchmarks peers install [NAME…]`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

FOLDER = Path(__file__).parent / ".peers"

_STAMP = "installed.json"  # versions; written last, so a folder without it is no peer
_SHARED = ("anyio", "orjson", "uvloop; sys_platform != 'win32'", "aiosqlite")  # what all contenders run on
_VERSIONS = (
    "import json, sys; from importlib.metadata import version; print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Something that does the same work.

    Args:
        contender: Its module in `benchmarks.contenders`, or its program for Node.
        packages: What is installed, from the registry.
        imports: What a program of its own begins with.
        node: It runs under Node.
        remembers: It can be given a history, and keeps it from one process to the next.
        idles: It has something that is open while nothing happens.
    """

    contender: str
    packages: Sequence[str]
    imports: str = ""
    node: bool = False
    remembers: bool = False
    idles: bool = False


PEERS: Mapping[str, Peer] = {
    "openai": Peer(
        contender="openai_sdk", packages=["openai"], imports="from openai import AsyncOpenAI", remembers=True
    ),
    "litellm": Peer(contender="litellm_sdk", packages=["litellm"], imports="import litellm", remembers=True),
    "pydantic-ai": Peer(
        contender="pydantic_ai",
        packages=["pydantic-ai-slim[openai]"],
        imports="from pydantic_ai import Agent; from pydantic_ai.models.openai import OpenAIChatModel",
        remembers=True,
        idles=True,
    ),
    "openai-agents": Peer(
        contender="openai_agents",
        packages=["openai-agents"],
        imports="from agents import Agent, Runner",
        remembers=True,
        idles=True,
    ),
    "langgraph": Peer(
        contender="langgraph",
        packages=["langgraph", "langchain", "langchain-openai", "langgraph-checkpoint-sqlite"],
        imports="from langchain.agents import create_agent; from langchain_openai import ChatOpenAI",
        remembers=True,
    ),
    "strands": Peer(
        contender="strands",
        packages=["strands-agents[openai]"],
        imports="from strands import Agent; from strands.models.openai import OpenAIModel",
        idles=True,
    ),
    "agno": Peer(
        contender="agno",
        packages=["agno", "openai", "sqlalchemy[asyncio]"],
        imports="from agno.agent import Agent; from agno.models.openai import OpenAIChat",
        idles=True,
    ),
    "google-adk": Peer(
        contender="google_adk",
        packages=["google-adk", "litellm", "sqlalchemy[asyncio]"],
        imports="from google.adk.runners import Runner; from google.adk.models.lite_llm import LiteLlm",
        idles=True,
    ),
    "pi": Peer(
        contender="pi.mjs", packages=["@mariozechner/pi-agent-core", "@mariozechner/pi-ai"], node=True, idles=True
    ),
}


def installed(names: Iterable[str] = PEERS) -> list[str]:
    """Return which of these peers are installed."""
    return [name for name in names if (FOLDER / name / _STAMP).is_file()]


def versions(name: str) -> dict[str, str]:
    """Return the versions of a peer's packages that are installed."""
    found: dict[str, str] = orjson.loads((FOLDER / name / _STAMP).read_bytes())
    return found


def python(name: str) -> str:
    """Return the Python of a peer."""
    return str(FOLDER / name / "bin" / "python")


def command(name: str, how: str) -> list[str]:
    """Return what runs a contender: one of ours with this Python, a peer with its own."""
    peer = PEERS.get(name)
    if peer is None:
        return [sys.executable, "-m", "benchmarks.contenders", name, how]
    if not peer.node:
        return [python(name), "-m", "benchmarks.contenders", peer.contender, how]
    program = FOLDER / name / peer.contender  # beside its packages, where Node looks for them
    shutil.copyfile(Path(__file__).parent / "contenders" / peer.contender, program)
    return ["node", "--expose-gc", str(program), how]


def install(name: str) -> None:
    """Make a peer's environment anew, from the registry.

    Raises:
        CalledProcessError: It could not be installed; what went wrong was printed.
        FileNotFoundError: It runs under Node, and there is none.
    """
    peer, folder = PEERS[name], FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if peer.node:
        (folder / "package.json").write_text('{"private": true, "type": "module"}')
        _run(["npm", "install", "--no-audit", "--no-fund", "--silent", *peer.packages], folder)
    else:
        _run([sys.executable, "-m", "venv", str(folder)], folder)
        pip = [python(name), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        _run([*pip, *_SHARED, *peer.packages], folder)
    (folder / _STAMP).write_bytes(orjson.dumps(_versions(name)))


def _versions(name: str) -> dict[str, str]:
    peer, folder = PEERS[name], FOLDER / name
    if peer.node:
        files = {package: folder / "node_modules" / package / "package.json" for package in peer.packages}
        return {package: orjson.loads(file.read_bytes())["version"] for package, file in files.items()}
    names = [package.partition("[")[0] for package in peer.packages]
    done = subprocess.run([python(name), "-c", _VERSIONS, *names], stdout=subprocess.PIPE, check=True)
    found: dict[str, str] = orjson.loads(done.stdout)
    return found


def _run(arguments: Sequence[str], folder: Path) -> None:
    subprocess.run(arguments, cwd=folder, check=True)
