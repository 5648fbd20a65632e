"""`streamagent approve`: list the calls that wait for somebody's word, and decide about them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .escape import compact, printable
from .exits import USAGE, fail
from .options import DEFAULT_DB, Json
from .output import writing
from .sessions import Database, print_dict, with_store

if TYPE_CHECKING:
    from streamagent.approvals import Approval
    from streamagent.protocols import Store

_SHOWN = 4000  # characters of the arguments; of longer ones the length is told, and the digest


def approve(  # noqa: PLR0913 - the options of a command
    session: Annotated[str | None, typer.Argument(help="The session; by default all are listed.")] = None,
    approvals: Annotated[
        list[str] | None, typer.Argument(metavar="APPROVAL…", help="What to decide about; by default they are listed.")
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Decide about all that wait in the session.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="Have the calls not run.")] = False,
    reason: Annotated[str, typer.Option(help="Of a rejection: why; the model reads it.")] = "",
    args: Annotated[str | None, typer.Option(help="JSON: the arguments to run the call with instead.")] = None,
    always: Annotated[
        str | None,
        typer.Option(help="JSON: approve further calls in this session with these arguments; {} for all of the tool."),
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who decides, for the record.")] = None,
    db: Database = DEFAULT_DB,
    json: Json = False,
) -> None:
    """List the calls that wait for an approval, or decide about them.

    A call that was approved is run when its session goes on: `streamagent run TARGET --session SESSION --resume`.
    """
    given, granted = _read("args", args), _read("always", always)
    deciding = session is not None and bool(approvals or everything)
    said = {"--reject": reject, "--reason": reason, "--args": args, "--always": always, "--by": by}
    _check(session, approvals, everything=everything, said=[name for name, value in said.items() if value])

    async def work(store: Store) -> int:
        from streamagent.approvals import Verdict, decide, pending

        verdict = Verdict(approval="", approve=not reject, reason=reason, args=given, always=granted, by=by)
        if session is None or not deciding:
            async for approval in _waiting(store, session):
                _show(approval, json=json)
            return 0
        chosen = approvals or [approval.id for approval in await pending(store, session)]
        if not chosen:
            raise fail(f"no call waits in session {session!r}")
        for chosen_id in chosen:
            await decide(store, session, replace(verdict, approval=chosen_id))
        return len(chosen)

    count = with_store(db, work, read_only=not deciding)
    if deciding:
        typer.echo(f"{'rejected' if reject else 'approved'} {count}", err=True)
        typer.echo(f"go on with: streamagent run TARGET --session {printable(str(session))} --resume", err=True)


def _check(session: str | None, approvals: Sequence[str] | None, *, everything: bool, said: Sequence[str]) -> None:
    """Refuse what would be taken for a decision, and decides about nothing."""
    if everything and session is None:
        raise fail("--all is about a session; name it: streamagent approve SESSION --all", USAGE)
    if everything and approvals:
        raise fail("give the ids of approvals or --all, not both", USAGE)
    if said and not (approvals or everything):
        raise fail(f"{', '.join(said)}: name what to decide about: a session and the ids, or --all", USAGE)


async def _waiting(store: Store, session: str | None) -> AsyncIterator[Approval]:
    from streamagent.approvals import pending

    names = [session] if session is not None else [info.id async for info in store.sessions()]
    for name in names:
        for approval in await pending(store, name):
            yield approval


@writing()
def _show(approval: Approval, *, json: bool) -> None:
    if json:
        print_dict(**{**asdict(approval), "created_at": approval.created_at.isoformat()})
        return
    print(printable(f"{approval.session} {approval.id} {question(approval)}"), flush=True)


def question(approval: Approval) -> str:
    """Show a call as it would run, with nothing hidden: the length and the digest tell what was cut."""
    text = compact(approval.args)
    cut = f"{text[:_SHOWN]}… ({len(text)} characters, sha256 {approval.digest})" if len(text) > _SHOWN else text
    return printable(f"{approval.tool} {cut}")


def _read(name: str, text: str | None) -> Mapping[str, Any] | None:
    from streamagent import exactjson

    if text is None:
        return None
    try:
        value = exactjson.loads(text)
    except ValueError as error:
        raise fail(f"--{name} is not JSON: {error}", USAGE) from error
    if not isinstance(value, dict):
        raise fail(f"--{name} is a JSON object, name to value; not {text!r:.80}", USAGE)
    return value
