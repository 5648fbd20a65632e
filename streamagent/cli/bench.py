"""`streamagent bench`: what an agent's sessions cost under load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from .exits import USAGE, exit_codes, fail
from .interrupts import Interrupts
from .output import writing

if TYPE_CHECKING:
    from streamagent.agent import Agent
    from streamagent.protocols import Model
    from streamagent.testing.load import Load

Rounds = Sequence[Mapping[str, float]]

_PROMPT = "How many blue mugs are left?"
_MODELS = ("mock", "provider")
_MEMORY = "rss_kb_per_session"
_ABOUT = {
    "cpu_us_per_chunk": "CPU a chunk of text, in µs",
    "first_ms": "time to the first text, in ms",
    "first_ms_p99": "  of the slowest hundredth",
    "session_ms": "time of a session, in ms",
    "session_ms_p99": "  of the slowest hundredth",
    _MEMORY: "memory of a session, in KB",
    "sessions_per_s": "sessions a second",
}


def bench(  # noqa: PLR0913 - the options of a command
    target: Annotated[str, typer.Argument(metavar="TARGET", help="'module:attr' or 'path/to/file.py'.")],
    *,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="How many run at once.")] = 50,
    chunks: Annotated[int, typer.Option("--chunks", min=1, help="Pieces of text in an answer.")] = 100,
    pace: Annotated[float, typer.Option("--pace", min=0, metavar="MS", help="Milliseconds between two pieces.")] = 0.0,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt", help="What each session is asked; by default the target's PROMPT.", show_default=False
        ),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="'mock' in this process, or 'provider': the mock behind HTTP.")
    ] = "mock",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often; the median counts.")] = 3,
    tools: Annotated[bool, typer.Option("--tools/--no-tools", help="Let the model call a tool, once.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what an agent's sessions cost: CPU a chunk, time to the first text, memory a session.

    No provider is asked and nothing of it is kept, but the target's stages and tools run, with arguments that are made
    up. Beside it stand the figures of an agent without stages of its own, from the same process.
    """
    with exit_codes() as interrupts:
        from streamagent.testing.load import Load

        from .target import load_target

        if model not in _MODELS:
            raise fail(f"--model is {' or '.join(_MODELS)}, not {model!r}; a provider is not asked for this", USAGE)
        loaded = load_target(target, model=None, db=None)
        load = Load(sessions=sessions, chunks=chunks, prompt=prompt or loaded.prompt or _PROMPT)
        with _answering(model, chunks, pace / 1000) as answers:
            measured = _measure(loaded.agent.with_options(model=answers), load, interrupts, rounds=rounds, tools=tools)
        with writing():
            _show(_figures(measured), json=json)


@contextmanager
def _answering(model: str, chunks: int, delay: float) -> Iterator[Model]:
    from streamagent.models.direct import DirectModel
    from streamagent.testing.mock_provider import open_mock_provider, wordy_mock

    if model == "mock":
        yield wordy_mock(chunks, delay)
        return
    with open_mock_provider(chunks, delay) as url:
        yield DirectModel("openai/mock", api_base=url, api_key="none")


def _measure(agent: Agent, load: Load, interrupts: Interrupts, *, rounds: int, tools: bool) -> Mapping[str, Rounds]:
    """Measure the agent, and one that has its model and tools and nothing else, in turns."""
    from streamagent.agent import Agent
    from streamagent.testing.load import measure_load

    if not tools:
        agent = agent.with_options(settings=replace(agent.plan.settings, tool_choice="none"))
    plain = Agent(agent.model, tools=agent.tools, settings=agent.plan.settings)
    measured: Mapping[str, list[Mapping[str, float]]] = {"target": [], "plain": []}

    async def work() -> None:
        with interrupts.cut():
            for _ in range(rounds):
                measured["target"].append(await measure_load(agent, load))
                measured["plain"].append(await measure_load(plain, load))

    interrupts.run(work)
    return measured


def _figures(measured: Mapping[str, Rounds]) -> Mapping[str, Mapping[str, float]]:
    """Take medians, and the ratios within each round; memory of the first sessions, as the others use it again."""
    target, plain = measured["target"], measured["plain"]
    keys = [key for key in _ABOUT if key != _MEMORY]
    ratios = {
        key: median(ours[key] / other[key] for ours, other in zip(target, plain, strict=True) if other[key])
        for key in keys
    }
    medians = {name: {key: median(found[key] for found in rounds) for key in keys} for name, rounds in measured.items()}
    return {
        "target": {**medians["target"], _MEMORY: target[0][_MEMORY]},
        "plain": medians["plain"],
        "ratio": ratios,
    }


def _show(figures: Mapping[str, Mapping[str, float]], *, json: bool) -> None:
    if json:
        import orjson

        typer.echo(orjson.dumps(figures).decode())
        return
    typer.echo(f"{'':<32}{'target':>10}{'plain':>10}{'ratio':>8}")
    for key, about in _ABOUT.items():
        cells = [f"{figures[name][key]:,.4g}" if key in figures[name] else "" for name in ("target", "plain", "ratio")]
        typer.echo(f"{about:<32}{cells[0]:>10}{cells[1]:>10}{cells[2]:>8}".rstrip())
