"""Sub-agents: runs that a call of another run waits for, each in a session of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anyio import move_on_after, sleep_forever

from ._core.output import render
from .calls import Child, Output
from .driver import RunReply
from .errors import ConfigError, HandedOver, LeaseLost, SessionBusy, StoreBusy, StoreError
from .lineage import child_id, settle_tree
from .message import Message, clean_text
from .pipeline import CLOSE_TIMEOUT
from .plan import Plan
from .prompts import own_key
from .reply import TurnText
from .run import Run

if TYPE_CHECKING:
    from .runtime import Runtime

PROMPT = own_key(
    "sub-agent"
)  # client key of the one prompt of its session: a call that is run again does not ask twice
_ANSWERED = frozenset({"stop", "stopped", "terminate"})


async def run_child(runtime: Runtime, run: Run, child: Child) -> Output:
    """Let a sub-agent answer; see `ToolContext.start`.

    Its session is in the run's store. What it says is shown with `query.path`, and stored there alone. When it fails,
    its session is closed before the call has its result; if that fails, too, so does the run, and the call stays open.

    Args:
        runtime: Where the run lives.
        run: The run whose call wants it.
        child: What is wanted.

    Raises:
        ConfigError: It is no agent.
    """
    plan = getattr(child.agent, "plan", None)
    if not isinstance(plan, Plan):
        raise ConfigError(f"context.start takes an Agent, not {child.agent!r:.80}")
    if refused := run.lineage.refusal():
        return Output(refused, is_error=True)
    session = child_id(run.session, child.call, next(child.numbers))
    parent = {"session": run.session, "call": child.call}
    prompt = Message(role="user", content=clean_text(child.prompt), prev=child.call, query={"parent": parent})
    lineage = run.lineage.child(run, child.call)
    lineage.tree.live += 1
    try:
        async with RunReply(runtime, session, plan, prompt=prompt, client_key=PROMPT, lineage=lineage) as reply:
            return await _listen(reply, session, list(lineage.path), child)
    except (LeaseLost, SessionBusy, HandedOver):  # another process has it
        raise
    except Exception:  # also that of a store that did not take its end
        if not (run.tasks.cancelled or lineage.tree.left):  # whoever ends the run closes it, or goes on with it
            await _close(runtime, run, session, prompt)
        raise
    finally:
        lineage.tree.live -= 1


async def _close(runtime: Runtime, run: Run, session: str, prompt: Message) -> None:
    """Close the session of a sub-agent that failed: behind its call's result nobody looks for what it left open."""
    failure: StoreError = StoreBusy(f"session {session!r}: it could not be closed within {CLOSE_TIMEOUT:g} s")
    with move_on_after(CLOSE_TIMEOUT, shield=True):
        try:
            return await _settle(runtime, session, prompt)
        except (LeaseLost, SessionBusy):  # whoever has it settles it
            return None
        except StoreError as error:
            failure = error
    run.tasks.fail(failure)
    return await sleep_forever()  # until the run's end cancels this: the call gets no result here


async def _settle(runtime: Runtime, session: str, prompt: Message) -> None:
    """Take a session and close it; one without rows gets the prompt, lest those of later sub-agents be overlooked."""
    begun = await runtime.holding.begin_run(session, None, client_key=None, rest=())
    store, left, settled = runtime.store, begun.standing.left, False
    try:
        if left.last is None:
            if not begun.standing.inbox:
                await store.enqueue(session, prompt, client_key=PROMPT)
            await store.admit(session, fence=begun.fence, limit=1)
            left = await store.unfinished(session)
        await settle_tree(store, session, fence=begun.fence, left=left)
        settled = True
    finally:
        await runtime.holding.release(session, begun.fence, unfinished=not settled)


async def _listen(reply: RunReply, session: str, path: list[str], child: Child) -> Output:
    """Show what it says, and keep its last words."""
    text, stop = TurnText(), Message.stop("error")
    async for message in reply:
        if message.path:  # from deeper: it knows its own way
            await child.relay(message)
            continue
        text.add(message)
        stop = message if message.type == "stop" else stop
        await child.relay(replace(message, session=session, query={**(message.query or {}), "path": path}))
    return _output(str(text), session, stop.query or {})


def _output(text: str, session: str, end: Mapping[str, Any]) -> Output:
    reason = end.get("reason")
    failed = reason not in _ANSWERED
    said = "\n\n".join(filter(None, [_failure(session, end), text])) if failed else text
    output = render(said)
    return replace(output, is_error=failed, details={**(output.details or {}), "session": session, "reason": reason})


def _failure(session: str, end: Mapping[str, Any]) -> str:
    if end.get("reason") == "paused":
        return f"The sub-agent waits for an approval in its own session {session!r}."
    error = end.get("error") or {}
    why = error.get("message") or ", ".join(f"{name} {value}" for name, value in (end.get("limit") or {}).items())
    return f"The sub-agent ended with {end.get('reason')!r}" + (f": {why}." if why else ".")
