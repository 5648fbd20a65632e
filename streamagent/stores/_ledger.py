"""What a session's writer may do, once for all stores: rows, the order of sequences, the fence. No IO, no clock."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from streamagent.errors import ConflictError, InboxFull, LeaseLost, MessageError, SessionBusy
from streamagent.records import Begun, Owner

from ._codec import decode_query, encode_query, merge_queries
from ._pairs import PAIRED, answered_by, bind, is_request, substance, waits
from ._row import Row, closed_error
from ._shelf import Shelf

_INT64 = 1 << 63
INBOX_LIMIT = 1_000  # messages that wait in a session: more are a mistake, or an attack
NOBODY = ""  # the owner of a run that somebody has to go on with


class Ledger(Shelf):
    """The rules of writing one session. Each method checks first and changes after: a raise changes nothing.

    Rows that are handed over may be kept; handing the same ones over again after a rollback gives the same result.
    """

    def acquire(self, owner: Owner | None = None) -> int:
        """Give the session to a new writer; return its fence."""
        self.crashes += self._takes_from_the_dead(owner)
        if owner is not None:
            self.hear(owner)
        self.owner = None if owner is None else owner.id
        self.fence += 1
        return self.fence

    def _takes_from_the_dead(self, owner: Owner | None) -> bool:
        if not self.owner or owner is None or self.owner == owner.id:
            return False
        if self.is_alive(self.owner):
            raise self._held()
        return True

    def begin_run(
        self, owner: Owner, prompt: Row | None, *, client_key: str | None = None, rest: Sequence[Row] = ()
    ) -> Begun:
        """Give the session to a new writer, with its prompt in the inbox."""
        self._takes_from_the_dead(owner)  # who may not have it puts nothing into the inbox
        stored = None if prompt is None else self.enqueue(prompt, client_key=client_key, rest=rest)
        fence = self.acquire(owner)
        told = None if stored is None else stored.message(self.session)
        return Begun(fence=fence, prompt=told, standing=self.standing())

    def release(self, *, fence: int, unfinished: bool = False) -> None:
        """Take the session back from a writer whose work is done, or left to others."""
        if fence != self.fence:
            return
        self.owner = NOBODY if unfinished else None
        if not unfinished:
            self.crashes = 0

    def start_call(self, call: str, *, fence: int) -> int:
        """Note that a call's tool is about to run; return which attempt that is."""
        self._check(fence)
        row = self.find(call)
        return self.start(call) if row is not None and row.state == "unanswered" else 1

    def finish_call(self, call: str, outcome: Row, *, fence: int) -> None:
        """Note what came of a call."""
        self._check(fence)
        self.keep_outcome(call, outcome)

    def keep_outcome(self, call: str, outcome: Row) -> None:
        """Note what came of a call that was started."""
        told = {"id": outcome.id, "content": "".join(outcome.pieces), "query": outcome.facts}
        self.finish(call, encode_query(told) or "")

    def write(self, parts: Collection[Row], *, fence: int) -> dict[str, int]:
        """Open and continue messages, each in one part; return their sequences by id."""
        self._check(fence)
        pairs = [(part, self.find_new(part.id)) for part in parts]
        for part, row in pairs:
            if self.shares(part.id) if row is None else row.state != "open":
                raise closed_error(part.id)
        queries = [part.query if row is None else merge_queries(row.query, part.query) for part, row in pairs]
        return {part.id: self._take(part, row, query) for (part, row), query in zip(pairs, queries, strict=True)}

    def enqueue(self, row: Row, *, client_key: str | None, rest: Sequence[Row] = ()) -> Row:
        """Put whole messages into the inbox, or return the equal one that was sent under this key before."""
        for part in (row, *rest):
            if part.more:
                raise MessageError(f"message {part.id} is a fragment; the inbox takes whole messages")
        earlier = None if client_key is None else self.find_key(client_key)
        if earlier is not None:
            if substance(earlier) != substance(row):
                raise ConflictError(_used_before(earlier, client_key))
            return earlier
        for part in (row, *rest):
            if self.find_new(part.id) is not None or self.shares(part.id):
                where = f"in session {self.session!r} already; send a message with a new id"
                raise MessageError(f"message {part.id} is {where}")
        if row.type not in ("approval", "cancel") and self.has_waiting(INBOX_LIMIT - len(rest)):
            raise InboxFull(f"session {self.session!r} has {INBOX_LIMIT} messages that wait; have some answered first")
        row.client_key = client_key
        if row.type == "approval":
            self._decide(row)
        for part in (row, *rest):
            part.state = "inbox"
            self.put(part)
        return row

    def _decide(self, row: Row) -> None:
        """Check a decision on an approval; one that ends a grant does so at once."""
        query = row.facts or {}
        request = self.find(str(query.get("approval")))
        bind(row, request)
        if request is not None and query.get("decision") == "revoke" and request.state == "unanswered":
            request.state = "closed"
            self.put(request)

    def admit(self, *, fence: int, limit: int, ids: Collection[str] | None = None) -> list[Row]:
        """Give the oldest rows of the inbox, or those of these ids, their sequence."""
        self._check(fence)
        limit = max(0, min(limit, _INT64 - 1))
        if ids is None:
            rows = list(self.waiting(limit))
        else:
            rows = [row for row in self.waiting(_INT64 - 1) if row.id in ids][:limit]
        for row in rows:
            self._open(row)
            self._settle(row)
        return rows

    def delete(self, *, idle: bool = False) -> bool:
        """Remove the session; what stays is a higher fence, so that a late writer loses its lease."""
        if idle:
            self._check_idle()
        if forks := self.forks():
            names = ", ".join(map(repr, forks))
            raise ConflictError(f"session {self.session!r} shares its rows with its forks ({names}); delete them first")
        found = self.clear() or self.base > 0
        self.head, self.base, self.prev, self.owner, self.crashes = 0, 0, None, None, 0
        if self.fence or found:
            self.fence += 1
        return found

    def _check_idle(self) -> None:
        if self.owner is not None and self.is_alive(self.owner):
            raise self._held()
        if self.waiting(1):
            raise SessionBusy(f"session {self.session!r} has something in its inbox; run it, or delete it all the same")
        if any(is_request(row) for row in self.asking()):
            raise SessionBusy(f"session {self.session!r} waits for an approval; decide, or delete it all the same")

    def _held(self) -> SessionBusy:
        told = f"session {self.session!r} is held by {self.owner}; wait for its run, or cancel it"
        return SessionBusy(told, owner=self.owner)

    def _check(self, fence: int) -> None:
        if fence != self.fence or not fence:  # 0: nobody has it yet
            raise LeaseLost(
                f"session {self.session!r} has another writer: fence {fence} is not its current one; stop this run"
            )

    def _take(self, part: Row, row: Row | None, query: str | None) -> int:
        if row is None:
            row = part
            self._open(row)
        else:
            row.absorb(part, query)
        self._settle(row)
        return row.sequence or 0

    def _open(self, row: Row) -> None:
        self.head += 1
        row.sequence, row.fence = self.head, self.fence
        row.prev, self.prev = row.prev or self.prev, None

    def _settle(self, row: Row) -> None:
        row.state = "open" if row.more else "closed"
        if row.type not in PAIRED:
            self.put(row)
            return
        query = decode_query(row.query) or {}
        answered = answered_by(row.type, query)
        waiting = self.find(answered) if answered is not None else None
        late = row.type == "approval" and waiting is not None and waiting.state == "closed"  # it grants nothing
        if not row.more and not late and waits(row.type, query):
            row.state = "unanswered"
        self.put(row)
        if waiting is not None and waiting.state in ("unanswered", "closed") and waiting.answered is None:
            waiting.state = "closed"
            if row.type == "tool_result":
                waiting.answered = row.sequence
                self.close(waiting.id)
            self.put(waiting)


def _used_before(row: Row, client_key: str | None) -> str:
    """Say what stands in the way of another message under a client key; a decision's key is none of the user's."""
    if row.type != "approval":
        return f"client key {client_key!r} was used before with another message; use a new key"
    said = row.facts or {}
    by = f" by {said['by']!r:.80}" if "by" in said else ""
    decided = f"{said.get('decision')!r}{by}"
    return f"approval {said.get('approval')!r} was decided otherwise before: {decided}; the first decision holds"
