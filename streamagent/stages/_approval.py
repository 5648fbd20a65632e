"""The gate before a tool: who has to approve a call, and whether somebody did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from streamagent._core.digest import approval_digest, covers, equal, spec_version
from streamagent._core.output import render, text_of
from streamagent.calls import BeforeToolCall, Decision, Output, Tool, ToolCall
from streamagent.hooks import said_by, settled
from streamagent.message import Message
from streamagent.protocols import RunContext
from streamagent.records import Unfinished

from ._verdicts import BLOCKED, Blocked

REJECTED = "Tool execution rejected"
UNSHOWN = (
    "Not executed: it needs an approval, and its arguments cannot be shown as they are: written as JSON and read again "
    "they are others."
)
UNSTORED = "Not executed: it needs an approval, and nothing is stored here: persist() stands behind tool_dispatch."
REJECTED_AGAIN = "Not executed: this call was rejected already. Do something else, or ask the user."


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A call at the gate.

    Args:
        tool: The tool.
        call: The call, prepared and validated.
        message: The call as the model made it.
        replaced: A hook gave the arguments.
        decision: The decision about it, when somebody was asked.
    """

    tool: Tool
    call: ToolCall
    message: Message
    replaced: bool = False
    decision: Message | None = None


@dataclass(slots=True)
class Gate:
    """Decides which calls of a run pass. It remembers what was rejected, and lets it not be asked again."""

    run: RunContext
    denied: set[str] = field(default_factory=set)

    def rejection(self, decision: Message | None) -> Output | None:
        """Make the result of a call that somebody rejected."""
        said = (decision.query or {}) if decision is not None else {}
        if decision is None or said.get("decision") in ("approve", "edit"):
            return None
        self.denied.add(str(said.get("digest")))
        return Output(
            f"{REJECTED}; Rejection Reason: {decision.content}" if decision.content else REJECTED, is_error=True
        )

    async def judge(self, asked: Asked) -> Output | Message | str | None:
        """Say what becomes of a call that nobody rejected.

        Returns:
            `None`: it runs, nobody has to approve it. A text: it runs, by the decision of this id. A message: the
            request to approve it. An `Output`: somebody rejected the same before, or nobody can be asked.
        """
        if asked.decision is None and not await _is_gated(asked):
            return None
        args = await _shown(asked)
        if args is None:
            return Output(UNSHOWN, is_error=True)
        request = _request(asked, args)
        known = request.query or {}
        if asked.decision is not None and _is_approved(asked.decision.query or {}, known, replaced=asked.replaced):
            return asked.decision.id
        if known["digest"] in self.denied:
            return Output(REJECTED_AGAIN, is_error=True)
        left = await self.run.store.unfinished(self.run.session)
        if asked.message.id not in {call.id for call in left.calls}:
            return Output(UNSTORED, is_error=True)
        return _grant(left, known) or request

    async def passed(self, asked: Asked) -> str | None:
        """Say which decision let a call pass that was begun: the one about it, or a grant that still holds."""
        if asked.decision is not None:
            return asked.decision.id
        args = await _shown(asked) if await _is_gated(asked) else None
        if args is None:
            return None
        return _grant(await self.run.store.unfinished(self.run.session), _request(asked, args).query or {})


async def ask_hook(before: BeforeToolCall | None, call: ToolCall) -> Mapping[str, Any]:
    """Return the arguments as `before_tool_call` wants them, which has a copy of its own.

    Raises:
        Blocked: It blocks the call.
    """
    if before is None:
        return call.args
    shown = replace(call, args=_copied(call.args))
    said = await said_by(before(shown), Decision, "before_tool_call")
    if said is not None and said.block is not None:
        raise Blocked(render(Output(said.block or BLOCKED, is_error=True, terminate=said.terminate)))
    return shown.args if said is None or said.args is None else said.args


def _copied(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Copy arguments for a hook, deeply where that is possible."""
    try:
        return deepcopy(args)
    except Exception:  # noqa: BLE001 - foreign objects among the arguments
        return dict(args)


async def prepared(tool: Tool, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Have a tool mend and validate arguments, if it does."""
    prepare = getattr(tool, "prepare", None)
    done: Mapping[str, Any] = await settled(prepare(arguments)) if prepare else arguments
    return done


def _grant(left: Unfinished, asked: Mapping[str, Any]) -> str | None:
    """Return the id of a grant that holds for what is asked."""
    return next((grant.id for grant in left.grants if covers(grant.query or {}, asked)), None)


async def _is_gated(asked: Asked) -> bool:
    wanted = getattr(asked.tool, "requires_approval", False)
    return bool(await settled(wanted(asked.call.args)) if callable(wanted) else wanted)


def _is_approved(said: Mapping[str, Any], now: Mapping[str, Any], *, replaced: bool) -> bool:
    """Tell whether what would run was approved: the tool as it was, and the arguments, or those given instead."""
    if said.get("version") != now["version"]:
        return False
    return not replaced if said["decision"] == "edit" else said.get("digest") == now["digest"]


def _request(asked: Asked, args: Mapping[str, Any]) -> Message:
    spec, made = asked.tool.spec, asked.message.query or {}
    version = spec_version(spec)
    query = {
        "tool": spec.name,
        "id": made.get("id"),
        "call": asked.message.id,
        "args": args,
        "description": spec.description,
        "digest": approval_digest(version, spec.name, args),
        "version": version,
    }
    return Message(role="tool", type="approval", query=query)


async def _shown(asked: Asked) -> Mapping[str, Any] | None:
    """Write the arguments as JSON, from which the same ones can be made again: what is approved is what runs."""
    args = dict(asked.call.args)
    try:
        plain: dict[str, Any] = json.loads(text_of(args))
        again = await prepared(asked.tool, plain)
    except Exception:  # noqa: BLE001 - foreign code: classes among the arguments, validators
        return None
    return plain if equal(dict(again), args) else None
