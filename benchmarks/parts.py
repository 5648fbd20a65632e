"""`chunk_parts`: what each part of this runtime takes of a chunk, from the bytes that were read to the reply."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import thread_time_ns

from streamagent import Agent, Message, Pipeline, Runtime, SqliteStore, persist, rate_limit, strip_reasoning
from streamagent import tool_dispatch as dispatch
from streamagent._core.assembler import Assembler
from streamagent._core.event import EventReader, Said
from streamagent._core.sse import DONE, SSEDecoder
from streamagent.models.attempt import Chunks
from streamagent.models.chunks import ChunkModel, Request

from .harness import Samples, Tick
from .measure import run
from .report import Report, Setting
from .server import last_turn
from .workload import Workload

Part = Callable[[], Awaitable[object]]

_TIMES = 30  # answers that are measured at once
_LEADING, _CLOSING = 1, 3  # events of a turn that are no text: the role; the finish, the usage, `[DONE]`


def measure_parts(setting: Setting) -> Report:
    """Give each part the answer of a turn: in one read, and chunk by chunk."""
    samples = run(_measure, setting.workload, setting.rounds, setting.tick)
    return Report(setting=setting, samples=samples, checks=[])


async def _measure(workload: Workload, rounds: int, tick: Tick) -> Samples:
    """Measure each part once a round; a round before the first warms up."""
    events = [b"data: %b\n\n" % data for data in last_turn(workload.words)][_LEADING:-_CLOSING]
    samples: Samples = {}
    async with _open_parts([b"".join(events)]) as burst, _open_parts(events) as paced:
        for number in range(rounds + 1):
            tick(f"round {number}")
            for name in burst:
                costs = {"burst_us": await _cost(burst[name]), "paced_us": await _cost(paced[name])}
                if number:
                    found = {key: cost / len(events) for key, cost in costs.items()}
                    samples.setdefault(name, []).append(found)
    return samples


async def _cost(part: Part) -> float:
    """Return the microseconds of this thread's CPU that a part takes for an answer."""
    gc.collect()
    start = thread_time_ns()
    for _ in range(_TIMES):
        await part()
    return (thread_time_ns() - start) / 1000 / _TIMES


@asynccontextmanager
async def _open_parts(reads: Sequence[bytes]) -> AsyncIterator[Mapping[str, Part]]:
    """Give the parts; a model has the assembler in it, and a session the model."""
    reader = EventReader()
    said = [reader.feed(data) for data in reads]
    stages = [rate_limit(messages=100), dispatch(), persist(), strip_reasoning()]
    with TemporaryDirectory() as folder:
        async with Runtime(store=SqliteStore(Path(folder, "sessions.db"))) as runtime:
            model = _Prepared(said)
            yield {
                "events": partial(_decode, SSEDecoder, reads),
                "events, JSON": partial(_decode, EventReader, reads),
                "assembler": partial(_assemble, said),
                "model": partial(_answer, model),
                "session": partial(_ask, Agent(model, pipeline=Pipeline()), runtime),
                "session, stages": partial(_ask, Agent(model, pipeline=Pipeline(reply=stages)), runtime),
            }


async def _decode(make: type[SSEDecoder | EventReader], reads: Sequence[bytes]) -> None:
    decoder = make()
    for data in reads:
        list(decoder.feed(data))


async def _assemble(said: Sequence[Sequence[Said]]) -> None:
    assembler = Assembler()
    for batch in said:
        assembler.feed(*batch)


class _Prepared(ChunkModel):
    """Says what was read before."""

    def __init__(self, said: Sequence[Sequence[Said]]) -> None:
        super().__init__("openai/prepared")
        self._said = said

    async def chunks(self, request: Request) -> Chunks:  # noqa: ARG002 - it was asked before
        for batch in self._said:
            yield batch
        yield DONE


async def _answer(model: _Prepared) -> None:
    async def context() -> AsyncIterator[Message]:
        yield Message.user("Hi")

    async for _ in model.stream(context()):
        pass


async def _ask(agent: Agent, runtime: Runtime) -> None:
    async with agent.session(Message().id, runtime=runtime) as session:
        async for _ in session.ask("Hi"):
            pass
