"""Which calls wait for somebody's word, and what was decided: all of it is rows, so any process can do it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .errors import ConfigError
from .message import Message, clean_text
from .prompts import own_key
from .protocols import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A call that waits until somebody approves or rejects it.

    Args:
        id: What a decision names.
        session: The session whose run is paused.
        call: Message id of the call.
        call_id: The call's id, as the model knows it.
        tool: The tool's name.
        args: The arguments that it would be called with.
        description: What the tool does.
        digest: SHA-256 of the arguments and the tool's version: with others it is not run, but asked again.
        created_at: When it was asked, UTC.
    """

    id: str
    session: str
    call: str
    call_id: str
    tool: str
    args: Mapping[str, Any]
    description: str
    digest: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A decision that approves further calls of a tool in its session, until it is revoked.

    Args:
        id: What `revoke` names.
        tool: The tool's name.
        always: Which of its calls: a value for each argument that matters, or a text with `*` and `?`.
        by: Who gave it.
        created_at: When, UTC.
    """

    id: str
    tool: str
    always: Mapping[str, Any]
    by: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What somebody decides about a call.

    Args:
        approval: Id of the approval.
        approve: Run it, or do not.
        args: Of an approved call: the arguments to run it with instead.
        reason: Of a rejected call: why; the model reads it.
        always: Of an approved call: approve further calls of this tool in this session, whose arguments have these
            values; in a text `*` and `?` stand for characters of one line (with a backslash for themselves), and it
            must fit the whole argument; `{}` is every call of the tool.
        by: Who decides, for the record.

    Raises:
        ConfigError: A rejection with arguments or grants, an approval with a reason, or a value of a wrong type.
    """

    approval: str
    approve: bool = True
    args: Mapping[str, Any] | None = None
    reason: str = ""
    always: Mapping[str, Any] | None = None
    by: str | None = None

    def __post_init__(self) -> None:
        kinds = {"approval": str, "approve": bool, "reason": str, "by": str | None}
        for name, kind in kinds.items():
            if not isinstance(value := getattr(self, name), kind):
                wanted = getattr(kind, "__name__", str(kind))
                raise ConfigError(f"a verdict's `{name}` is {wanted}, not {value!r:.80}")
        if not self.approve and (self.args is not None or self.always is not None):
            raise ConfigError("a rejected call takes no `args` and no `always`; approve it, or leave them out")
        if self.approve and self.reason:
            raise ConfigError("a reason is for a rejected call: the model does not read it of an approved one")
        for name in ("args", "always"):
            value = getattr(self, name)
            if not isinstance(value, Mapping | None):
                raise ConfigError(f"a verdict's `{name}` is an object, name to value, not {value!r:.80}")


def id_of(item: str | Approval | Grant) -> str:
    """Return the id of what is named by itself or by its id.

    Raises:
        ConfigError: It is neither.
    """
    found = item.id if isinstance(item, Approval | Grant) else item
    if not isinstance(found, str):
        raise ConfigError(f"what is decided about is named by itself or by its id, not {item!r:.80}")
    return found


async def pending(store: Store, session: str) -> list[Approval]:
    """List the calls that wait, the oldest first; what is decided, and not yet executed, is left out.

    Args:
        store: Where the session lives.
        session: The session; an unknown one has none.
    """
    requests = (await store.unfinished(session)).approvals
    if not requests:
        return []
    decided = await _decided(store, session)
    return [_approval(session, request) for request in requests if request.id not in decided]


async def undecided(store: Store, session: str, requests: Sequence[Message]) -> bool:
    """Tell whether nothing was decided about these requests."""
    return (await _decided(store, session)).isdisjoint(request.id for request in requests)


async def _decided(store: Store, session: str) -> set[str]:
    """Return the ids of the approvals whose decisions wait in the inbox."""
    decisions = [message for message in await store.inbox(session) if message.type == "approval"]
    return {(decision.query or {})["approval"] for decision in decisions}


def refuse_strange(requests: Sequence[Message], tools: Collection[str]) -> None:
    """Refuse to go on with calls of tools that are not there, before a decision is used up.

    Raises:
        ConfigError: There are some.
    """
    asked = {str((request.query or {}).get("tool")) for request in requests}
    if strange := asked.difference(tools):
        raise ConfigError(
            f"calls of {', '.join(sorted(strange))} wait for an approval, and this agent does not have that tool; "
            "go on with the agent that made them"
        )


async def decide(store: Store, session: str, verdict: Verdict) -> None:
    """Store a decision. The first one holds; the same one again changes nothing.

    The call is run by the session's next run, wherever that is: `Session.resume` begins one.

    Args:
        store: Where the session lives.
        session: The session.
        verdict: The decision.

    Raises:
        ApprovalNotFound: The session has no such approval.
        ApprovalGone: It is too late: the call was closed, because the run was cancelled or the conversation went on.
        ConflictError: It was decided otherwise before.
    """
    said = {
        "approval": verdict.approval,
        "decision": "edit" if verdict.args is not None else "approve" if verdict.approve else "reject",
        "args": verdict.args,
        "always": verdict.always,
        "by": verdict.by,
    }
    await _enqueue(store, session, said, clean_text(verdict.reason))


async def grants(store: Store, session: str) -> list[Grant]:
    """List the grants of a session, the oldest first; also one whose call has not run yet, as it will hold then."""
    left = await store.unfinished(session)
    given = list(left.grants)
    if left.approvals:
        asked = {request.id for request in left.approvals}
        waiting = [row for row in await store.inbox(session) if row.type == "approval"]
        ended = {(row.query or {}).get("approval") for row in waiting if (row.query or {}).get("decision") == "revoke"}
        fresh = (row for row in waiting if "always" in (row.query or {}) and row.id not in ended)
        given += [row for row in fresh if (row.query or {}).get("approval") in asked]
    return list(map(_grant, given))


async def revoke(store: Store, session: str, grant: str, *, by: str | None = None) -> None:
    """End a grant, at once and for all processes.

    Args:
        store: Where the session lives.
        session: The session.
        grant: Id of the grant.
        by: Who revokes it, for the record.

    Raises:
        ApprovalNotFound: The session has no such grant.
    """
    await _enqueue(store, session, {"approval": grant, "decision": "revoke", "by": by}, "")


async def _enqueue(store: Store, session: str, said: Mapping[str, Any], content: str) -> None:
    query = {key: value for key, value in said.items() if value is not None}
    message = Message(role="user", type="approval", content=content, query=query)
    verb = "revoke" if said["decision"] == "revoke" else "decision"
    await store.enqueue(session, message, client_key=own_key(f"{verb}:{said['approval']}"))


def _approval(session: str, request: Message) -> Approval:
    query = request.query or {}
    return Approval(
        id=request.id,
        session=session,
        call=query["call"],
        call_id=query.get("id") or "",
        tool=query["tool"],
        args=query.get("args") or {},
        description=query.get("description") or "",
        digest=query["digest"],
        created_at=request.created_at,
    )


def _grant(row: Message) -> Grant:
    query = row.query or {}
    return Grant(id=row.id, tool=query["tool"], always=query["always"], by=query.get("by"), created_at=row.created_at)
