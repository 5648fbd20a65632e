"""Approvals in the words of two systems: DCAF's tool calls with `execute`, and the decisions of the CAP agents.

Both are views of the same rows: what is shown comes from `pending`, what is sent becomes a `Verdict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .approvals import Approval, Verdict
from .calls import ToolSpec
from .errors import ConfigError
from .message import Message

View = dict[str, Any]

YES = frozenset({"approve", "yes", "y", "confirm", "ok"})


def dcaf_tool_calls(approvals: Iterable[Approval], tools: Sequence[ToolSpec] = ()) -> list[View]:
    """Show what waits as DCAF's `data.tool_calls`.

    Args:
        approvals: What `pending` gave.
        tools: The tools, for `input_description`.
    """
    schemas = {spec.name: spec.parameters.get("properties", {}) for spec in tools}
    return [
        {
            "id": approval.id,
            "name": approval.tool,
            "input": dict(approval.args),
            "execute": False,
            "tool_description": approval.description,
            "input_description": {
                name: {"type": found.get("type", "string"), "description": found.get("description", "")}
                for name, found in schemas.get(approval.tool, {}).items()
            },
        }
        for approval in approvals
    ]


def dcaf_verdicts(tool_calls: Iterable[Mapping[str, Any]], approvals: Iterable[Approval] = ()) -> list[Verdict]:
    """Read decisions from DCAF's tool calls: `execute` true approves, a `rejection_reason` rejects, neither is no word.

    Args:
        tool_calls: What a client sent.
        approvals: What `pending` gives: an `input` that is another one than was shown is an edit.

    Raises:
        ConfigError: A call has no id, or an `execute` that is neither true nor false.
    """
    shown = {approval.id: approval.args for approval in approvals}
    verdicts: list[Verdict] = []
    for call in tool_calls:
        if not isinstance(call, Mapping) or not isinstance(found := call.get("id"), str):
            raise ConfigError(f"a tool call has an `id`, the one that it was shown with; not {call!r:.80}")
        given, execute = call.get("input"), call.get("execute", False)
        if not isinstance(execute, bool):
            raise ConfigError(f"`execute` of call {found!r:.80} is true or false, not {execute!r:.80}")
        if execute:
            edited = given if found in shown and given is not None and given != shown[found] else None
            verdicts.append(Verdict(approval=found, args=edited))
        elif call.get("rejection_reason") is not None:
            verdicts.append(Verdict(approval=found, approve=False, reason=str(call["rejection_reason"])))
    return verdicts


def dcaf_executed(messages: Iterable[Message]) -> list[View]:
    """Collect what ran, or was rejected, as DCAF's `data.executed_tool_calls`.

    Args:
        messages: Whole messages of a reply, or of the whole session. A call that waited keeps the id that
            `dcaf_tool_calls` has shown.
    """
    inputs: dict[str, Any] = {}
    shown: dict[str, str] = {}  # ids under which calls waited
    executed: list[View] = []
    for message in messages:
        query = message.query or {}
        if message.type == "tool_call":
            inputs[message.id] = query.get("args")
        elif message.type == "approval" and "args" in query:
            inputs[query["call"]] = query["args"]
            shown[query["call"]] = query.get("approval") or message.id
        elif message.type == "tool_result":
            call = query.get("call", "")
            found = {"id": shown.get(call, query.get("id")), "name": query.get("tool"), "input": inputs.get(call) or {}}
            executed.append({**found, "output": message.content})
    return executed


def cap_action_requests(approvals: Iterable[Approval], tools: Sequence[ToolSpec] = ()) -> list[View]:
    """Show what waits as the `actionRequests` of the CAP agents; decisions are sent in this order.

    Args:
        approvals: What `pending` gave.
        tools: The tools, for `argsSchema`.
    """
    schemas = {spec.name: spec.parameters for spec in tools}
    return [
        {
            "name": approval.tool,
            "args": dict(approval.args),
            "description": approval.description,
            "allowedDecisions": ["approve", "edit", "reject"],
            **({"argsSchema": schemas[approval.tool]} if approval.tool in schemas else {}),
        }
        for approval in approvals
    ]


def cap_verdicts(
    approvals: Sequence[Approval], decisions: str | Sequence[Mapping[str, Any]] | Mapping[str, Any]
) -> list[Verdict]:
    """Read decisions as the CAP agents take them: a list in the order of the action requests, or a text for all.

    Args:
        approvals: The list that was shown, kept until then: what `pending` gives now may be another one, and the
            decisions would be about calls that nobody saw.
        decisions: `{type, …}` each: `approve`, `edit` with `editedAction: {args}`, or `reject` with `message`; also
            with `{decisions: […]}` around them. Of a text, `approve`, `yes`, `confirm` and `ok` approve; any other is
            the reason of a rejection.

    Raises:
        ConfigError: No decisions, more than requests, one of no known type, or an edit without arguments.
    """
    if isinstance(decisions, str):
        said = decisions.strip()
        if said.lower() == "edit":
            raise ConfigError("an edit needs the arguments: send a decision {type: 'edit', editedAction: {args}}")
        yes = said.lower() in YES
        return [Verdict(approval=item.id, approve=yes, reason="" if yes else said) for item in approvals]
    listed: Any = decisions.get("decisions") if isinstance(decisions, Mapping) else decisions
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise ConfigError(f"decisions are a text, a list, or {{decisions: […]}}; not {decisions!r:.80}")
    if len(listed) > len(approvals):
        raise ConfigError(f"{len(listed)} decisions for {len(approvals)} action requests; send one for each")
    return [_cap_verdict(item, said) for item, said in zip(approvals, listed, strict=False)]


def _cap_verdict(approval: Approval, said: Mapping[str, Any]) -> Verdict:
    match said.get("type") if isinstance(said, Mapping) else None:
        case "approve":
            return Verdict(approval=approval.id)
        case "reject":
            return Verdict(approval=approval.id, approve=False, reason=str(said.get("message") or ""))
        case "edit":
            action = said.get("editedAction") or said
            args = action.get("args") if isinstance(action, Mapping) else None
            if isinstance(args, Mapping):
                return Verdict(approval=approval.id, args=args)
    raise ConfigError(
        f"a decision is {{type: 'approve'}}, 'edit' with editedAction.args, or 'reject'; not {said!r:.80}"
    )
