"""`streamagent bench`: what an agent's sessions cost under load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from .ending import Ending
from .escape import shorten
from .exits import FAILURE, USAGE, exit_codes, fail
from .interrupts import Interrupts
from .output import writing
from .progress import ProgressLine

if TYPE_CHECKING:
    from streamagent.agent import Agent
    from streamagent.protocols import Model
    from streamagent.testing.load import Load, Measured
    from streamagent.testing.outcomes import Trouble

Rounds = Sequence["Measured"]
Figures = Mapping[str, Mapping[str, float]]

_PROMPT = "How many blue mugs are left?"
_WIDTH = 200  # characters of what went wrong
_MODELS = ("mock", "provider")
_ANSWERS = 2  # for whose pace a session has time: a call, and what is said of its result
_MEMORY = "rss_kb_per_session"
_ABOUT = {
    "cpu_us_per_chunk": "CPU a chunk of text, in µs",
    "first_ms": "time to the first text, in ms",
    "first_ms_p99": "  of the slowest hundredth",
    "session_ms": "time of a session, in ms",
    "session_ms_p99": "  of the slowest hundredth",
    _MEMORY: "memory of a session, in KB",
    "sessions_per_s": "sessions a second",
    "turns": "turns of the model, a session",
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
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.001, metavar="S", help="Seconds that a session may take, beside the pace."),
    ] = 60.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what an agent's sessions cost: CPU a chunk, time to the first text, memory a session.

    No provider is asked and nothing of it is kept, but the target's stages and tools run, with arguments that are made
    up. Beside it stand the figures of an agent without stages of its own, from the same process. Exits with 1 when a
    session of the target gave no text or did not end well.
    """
    with Ending(), exit_codes() as interrupts:
        from streamagent.testing.load import Load, LoadTimeout

        from .target import load_target

        if model not in _MODELS:
            raise fail(f"--model is {' or '.join(_MODELS)}, not {model!r}; a provider is not asked for this", USAGE)
        loaded = load_target(target, model=None, db=None)
        limit = timeout + _ANSWERS * chunks * pace / 1000
        load = Load(sessions=sessions, chunks=chunks, prompt=prompt or loaded.prompt or _PROMPT, timeout=limit)
        try:
            with _answering(model, chunks, pace / 1000) as answers:
                agent = loaded.agent.with_options(model=answers)
                measured = _measure(agent, load, interrupts, rounds=rounds, tools=tools)
        except LoadTimeout as error:
            raise fail(f"{error}; --timeout gives them longer") from error
        with writing():
            _show(_figures(measured), _troubles(measured), json=json)
        if not all(outcome.worked for found in measured["target"] for outcome in found.outcomes):
            raise typer.Exit(FAILURE)


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
    measured: Mapping[str, list[Measured]] = {"target": [], "plain": []}

    async def work() -> None:
        with interrupts.cut(), ProgressLine() as line:
            for number in range(rounds):
                for name, measuring in (("target", agent), ("plain", plain)):
                    about = f"{name}, round {number + 1} of {rounds}: "
                    told = partial(_tell, line, about)
                    measured[name].append(await measure_load(measuring, load, told=told))

    interrupts.run(work)
    return measured


def _tell(line: ProgressLine, about: str, text: str) -> None:
    line.show(about + text)


def _figures(measured: Mapping[str, Rounds]) -> Figures:
    """Take medians, and the ratios within each round; memory of the first sessions, as the others use it again."""
    target, plain = ([found.figures for found in measured[name]] for name in ("target", "plain"))
    pairs = list(zip(target, plain, strict=True))
    ratios = {
        key: [ours[key] / other[key] for ours, other in pairs if key in ours and other.get(key)] for key in _ABOUT
    }
    return {
        "target": {**_medians(target), _MEMORY: target[0][_MEMORY]},
        "plain": _medians(plain),
        "ratio": {key: median(found) for key, found in ratios.items() if found and key != _MEMORY},
    }


def _medians(rounds: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    found = {key: [figures[key] for figures in rounds if key in figures] for key in _ABOUT if key != _MEMORY}
    return {key: median(values) for key, values in found.items() if values}


def _troubles(measured: Mapping[str, Rounds]) -> Mapping[str, Sequence[Trouble]]:
    """Say what went wrong in the sessions of all rounds."""
    from streamagent.testing.outcomes import find_troubles

    return {
        name: find_troubles([outcome for found in rounds for outcome in found.outcomes])
        for name, rounds in measured.items()
    }


def _show(figures: Figures, troubles: Mapping[str, Sequence[Trouble]], *, json: bool) -> None:
    if json:
        import orjson

        told = {name: [asdict(trouble) for trouble in found] for name, found in troubles.items()}
        typer.echo(orjson.dumps({**figures, "troubles": told}).decode())
        return
    typer.echo(f"{'':<32}{'target':>10}{'plain':>10}{'ratio':>8}")
    for key, about in _ABOUT.items():
        cells = [f"{figures[name][key]:,.4g}" if key in figures[name] else "" for name in ("target", "plain", "ratio")]
        typer.echo(f"{about:<32}{cells[0]:>10}{cells[1]:>10}{cells[2]:>8}".rstrip())
    for name, found in troubles.items():
        for trouble in found:
            typer.echo(f"{name}: {shorten(str(trouble), _WIDTH)}")
    turns = [figures[name]["turns"] for name in ("target", "plain")]
    if turns[0] != turns[1]:
        typer.echo(
            f"target and plain took {turns[0]:g} and {turns[1]:g} turns a session: the ratios compare other work"
        )
