"""Runs the command line: in this process for speed, as a real process where signals, pipes or terminals matter."""

import json
import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from streamagent.cli import app

ROOT = Path(__file__).parents[2]
PIPELINES = ROOT / "pipelines"


def invoke(*args: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, list(args), input=stdin)


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "streamagent.cli", *args]


def environment(**extra: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("STREAMAGENT_DB", "PYTHONPATH")}
    return {**inherited, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **extra}


def call(*args: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*args), cwd=cwd, env=environment(), input=stdin, capture_output=True, encoding="utf-8", timeout=50
    )


def start(*args: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*args),
        cwd=cwd,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def rows(session: str, db: str = "streamagent.db") -> list[dict]:
    """The stored rows, as `sessions show --json` prints them."""
    result = invoke("sessions", "show", session, "--db", db, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def types(session: str, db: str = "streamagent.db") -> list[str]:
    return [row["type"] for row in rows(session, db)]


def write_slow_recording(path: Path) -> Path:
    """A recording whose answer never ends: one word at once, the next after an hour."""
    word = {"choices": [{"index": 0, "delta": {"content": "Once "}, "finish_reason": None}]}
    lines = [{"at": 0, "chunk": word}, {"at": 3600, "chunk": word}, {"at": 3600, "end": True}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# A target whose model presses Ctrl-C in the middle of its answer.
INTERRUPTED_STORY = """
import os, signal
import anyio
from streamagent import Agent, Message

PROMPT = "tell me a story"

class Story:
    name = "story"

    async def stream(self, context, **options):
        yield Message(content="Once ", more=True)
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep_forever()

agent = Agent(Story())
"""

# A target whose model refunds what it is asked to, once somebody approves it; the tool notes what it did in a file.
REFUNDS = """
from pathlib import Path
from streamagent import Agent, Message, tool

PROMPT = "Refund A1."

@tool(requires_approval=True)
def refund(order: str) -> str:
    '''Give money back.'''
    with Path("effects.txt").open("a") as effects:
        effects.write(f"{order}\\n")
    return f"refunded {order}"

class Clerk:
    name = "clerk"

    async def stream(self, context, **options):
        *_, last = [message async for message in context]
        if last.role == "user":
            for number, order in enumerate(last.content.removeprefix("Refund ").rstrip(".").split(" and ")):
                call = {"tool": "refund", "id": f"c{number}", "args": {"order": order}}
                yield Message(type="tool_call", content="{}", query=call)
            yield Message.stop("tool_calls")
        else:
            yield Message(content=last.content + "!")
            yield Message.stop("stop")

agent = Agent(Clerk(), tools=[refund])
"""
