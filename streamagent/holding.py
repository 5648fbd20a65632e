"""`Holding`: the sessions that a process holds, taken from whoever has died and given back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from anyio import move_on_after

from .errors import SessionBusy, StoreError
from .message import Message
from .owners import is_gone, new_owner, note_end
from .protocols import Store
from .protocols.beginning import begin_by_steps, begins_by_steps
from .records import Begun

logger = logging.getLogger("streamagent")

LEASE = 15.0  # seconds: long against a pause of the interpreter, short against a user's patience
RELEASE_TIMEOUT = 5.0  # seconds


class Holding:
    """What one process holds in a store, under a name of its own.

    Args:
        store: Where the sessions live.
        lease: After which silence others may take over what it holds, in seconds.
    """

    def __init__(self, store: Store, lease: float) -> None:
        self.owner = new_owner(lease)
        self.unreleased: dict[str, tuple[int, bool]] = {}  # of sessions whose runs ended just now: fence, unfinished
        self._store = store
        self._used = False

    async def begin_run(
        self, session: str, prompt: Message | None, *, client_key: str | None, rest: Sequence[Message]
    ) -> Begun:
        """Take a session for a run, also from a process of this machine that has ended; see `Store.begin_run`.

        Raises:
            SessionBusy: Another process has it; the prompt was not taken.
            ConflictError: The key was used before with another prompt.
        """
        store = self._store
        by_steps = begins_by_steps(type(store))
        begin = partial(begin_by_steps, store, session) if by_steps else partial(store.begin_run, session)
        self._used = True
        try:
            return await begin(owner=self.owner, prompt=prompt, client_key=client_key, rest=rest)
        except SessionBusy as error:
            if error.owner is None or not is_gone(error.owner):
                raise
            await self._store.retire(error.owner)
        return await begin(owner=self.owner, prompt=prompt, client_key=client_key, rest=rest)

    async def release(self, session: str, fence: int, *, unfinished: bool) -> None:
        """Let others have a session, who go on with what is unfinished; if that fails, `give_back` tries again."""
        self.unreleased[session] = fence, unfinished
        await self._release(session, fence, unfinished=unfinished)

    async def give_back(self) -> None:
        """Release the sessions whose runs are over, as far as the store takes it."""
        for session, (fence, unfinished) in tuple(self.unreleased.items()):
            if not await self._release(session, fence, unfinished=unfinished):
                return

    async def _release(self, session: str, fence: int, *, unfinished: bool) -> bool:
        with move_on_after(RELEASE_TIMEOUT) as scope:
            try:
                await self._store.release(session, fence=fence, unfinished=unfinished)
            except StoreError:
                logger.debug("session %s could not be released yet", session, exc_info=True)
                return False
        if scope.cancelled_caught:
            return False
        if self.unreleased.get(session) == (fence, unfinished):
            del self.unreleased[session]
        return True

    async def leave(self) -> None:
        """Say that this process has nothing more; whatever it still holds others may have at once."""
        if not self._used:
            return
        told = False
        with move_on_after(RELEASE_TIMEOUT), suppress(StoreError):  # without it they wait for the lease's end
            await self._store.retire(self.owner.id)
            told = True
        if not told:
            note_end(self.owner.id)
