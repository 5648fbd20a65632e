"""Which row waits for which: a call for its result, a request to approve it for a decision, a grant for its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from streamagent.errors import ApprovalGone, ApprovalNotFound, ConfigError
from streamagent.message import Message
from streamagent.records import Unfinished

from ._codec import decode_query, encode_query

if TYPE_CHECKING:
    from ._row import Row

PAIRED = frozenset({"tool_call", "tool_result", "approval"})
_OF_REQUEST = ("call", "tool", "id", "args", "digest", "version")  # what a decision repeats of what it decides
_SUBSTANCE = ("approval", "decision", "always")  # what makes a decision another one, beside the arguments of an edit


def waits(kind: str, query: Mapping[str, Any]) -> bool:
    """Tell whether a complete row waits for another one: a superseded call does not, and of the decisions only a grant.

    Whoever cuts a call writes its result, too, and may die in between.
    """
    if kind == "tool_call":
        return query.get("cut") != "superseded"
    return kind == "approval" and _kind(query) != "decision"


def _kind(query: Mapping[str, Any]) -> str:
    """Say what a row of type `approval` is."""
    if "approval" not in query:
        return "request"
    return "grant" if "always" in query else "decision"


def is_request(row: Row) -> bool:
    """Tell whether a row of type `approval` asks for a decision."""
    return _kind(row.facts or {}) == "request"


def answered_by(kind: str, query: Mapping[str, Any]) -> str | None:
    """Return the id of the row that this one answers."""
    found = query.get({"tool_result": "call", "approval": "approval"}.get(kind, ""))
    return found if isinstance(found, str) else None


def left_open(
    opened: Iterable[Message], waiting: Iterable[Message], *, last: Message | None, forked: bool
) -> Unfinished:
    """Sort what waits.

    Args:
        opened: Messages whose last fragment was not written.
        waiting: Complete rows that wait for another one.
        last: The session's last message.
        forked: It is a fork that nothing was written to.
    """
    calls: list[Message] = []
    approvals: list[Message] = []
    grants: list[Message] = []
    for row in waiting:
        if row.type != "approval":  # also one that cannot be read
            calls.append(row)
        else:
            (approvals if _kind(row.query or {}) == "request" else grants).append(row)
    return Unfinished(open=list(opened), calls=calls, approvals=approvals, grants=grants, last=last, forked=forked)


def substance(row: Row) -> tuple[object, ...]:
    """Return what two rows under one client key must have in common; who decides does not make another decision."""
    query = row.facts
    if row.type == "approval":
        said = query or {}
        kept = (*_SUBSTANCE, "args") if said.get("decision") == "edit" else _SUBSTANCE
        query = {key: said.get(key) for key in kept}
    return row.role, row.type, "".join(row.pieces), query


def bind(decision: Row, request: Row | None) -> None:
    """Check that a decision's request waits for one, and write into the decision what was asked.

    Raises:
        ApprovalNotFound: The session has no such request.
        ApprovalGone: It is decided, or its call was closed.
    """
    said = decode_query(decision.query) or {}
    approval = answered_by("approval", said)
    revoked = said.get("decision") == "revoke"
    stored = request is not None and request.type == "approval" and (revoked or request.sequence is not None)
    asked = (decode_query(request.query) or {}) if request is not None and stored else {}
    if request is None or not stored or _kind(asked) != ("grant" if revoked else "request"):
        raise ApprovalNotFound(f"there is no approval {approval!r} in this session; `pending` lists those that wait")
    if request.state not in ("unanswered", "inbox"):
        raise ApprovalGone(
            f"approval {approval!r} waits no more: it was decided, or its call was closed when the run was cancelled "
            "or the conversation went on; nothing was executed for this decision"
        )
    if strange := said.get("always", {}).keys() - (asked.get("args") or {}).keys():
        names = ", ".join(sorted(asked.get("args") or {})) or "none"
        raise ConfigError(f"`always` names {', '.join(sorted(strange))}; the arguments of this call are: {names}")
    known = {key: asked[key] for key in _OF_REQUEST if key in asked}
    decision.query = encode_query(known | said)
