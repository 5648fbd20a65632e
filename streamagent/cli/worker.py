"""`streamagent worker`: answers what waits in the sessions of a store, until a signal ends it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from streamagent.handover import GRACE
from streamagent.holding import LEASE
from streamagent.watch import POLL, check_seconds
from streamagent.worker import CONCURRENCY, SWEEP, Worker

from .ending import Ending
from .escape import printable
from .exits import USAGE, exit_codes, fail
from .interrupts import Interrupted, Interrupts
from .logs import log_lines
from .options import ModelName
from .output import writing

if TYPE_CHECKING:
    from streamagent.protocols import Bus
    from streamagent.runtime import Runtime


def worker(  # noqa: PLR0913 - the options of a command
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="'module:attr' or 'path/to/file.py': an agent, or a mapping or function of a session that gives one.",
        ),
    ],
    *,
    model: ModelName = None,
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            "--store",
            envvar="STREAMAGENT_DB",
            help="Where the sessions are: an SQLite file, or postgresql://…; by default the target's own store.",
            show_default=False,
        ),
    ] = None,
    nats: Annotated[
        str | None,
        typer.Option(metavar="URL", envvar="STREAMAGENT_NATS", help="nats://…: hear of prompts at once."),
    ] = None,
    concurrency: Annotated[int, typer.Option(metavar="NUMBER", help="Sessions at once.")] = CONCURRENCY,
    sweep: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two looks for what waits.")] = SWEEP,
    lease: Annotated[
        float, typer.Option(metavar="SECONDS", help="Silence after which others take this worker's runs over.")
    ] = LEASE,
    poll: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time between two looks for what was cancelled elsewhere.")
    ] = POLL,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long runs may go on after the first signal.")
    ] = GRACE,
) -> None:
    """Answer what waits in the sessions of a store, beside any number of other workers.

    SIGTERM and Ctrl-C end it: it takes nothing new, lets its runs finish, and leaves what is not finished to others. A
    second signal ends it at once. It logs to standard error, one JSON object a line.
    """
    with Ending() as ending, exit_codes() as interrupts, suppress(Interrupted):  # before it began that is no failure
        from streamagent.runtime import Runtime

        from .target import is_target, load_workload

        if not is_target(target):
            raise fail(f"{target!r} is no target; write module:attr or path/to/file.py", USAGE)
        check_seconds("--grace", grace)
        load = load_workload(target, model=model, db=db)
        runtime = Runtime(store=load.store, poll=poll, lease=lease, bus=_bus(nats))
        own = Worker(runtime, load.plan_for, concurrency=concurrency, sweep=sweep)
        log_lines()

        async def work() -> None:
            async with runtime:
                await _work(
                    runtime, own, interrupts, grace=grace, about=f"{load.store!r}, {concurrency} sessions at once"
                )
                ending.begin()

        interrupts.run(work)


async def _work(runtime: Runtime, own: Worker, interrupts: Interrupts, *, grace: float, about: str) -> None:
    from anyio import create_task_group, sleep_forever

    async with create_task_group() as tasks:
        tasks.start_soon(own.run)
        with writing():
            typer.echo(printable(f"worker {runtime.holding.owner.id}: {about}"))
        with interrupts.cut():
            await sleep_forever()
        interrupts.take()
        await runtime.drain(grace)


def _bus(url: str | None) -> Bus | None:
    if url is None:
        return None
    from streamagent.buses.nats import NatsBus

    return NatsBus(url)
