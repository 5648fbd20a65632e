"""How a run begins in a store that has no transaction for that."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from anyio import move_on_after

from streamagent.errors import StoreError
from streamagent.message import Message
from streamagent.records import Begun, Owner

if TYPE_CHECKING:
    from .store import Store

GIVE_BACK_TIMEOUT = 5.0  # seconds
_STEPS = ("acquire", "enqueue", "standing", "unfinished", "inbox")


async def begin_by_steps(  # noqa: PLR0913 - as `Store.begin_run`
    store: Store, session: str, *, owner: Owner, prompt: Message | None, client_key: str | None, rest: Sequence[Message]
) -> Begun:
    """Do what `Store.begin_run` does by the other methods; what fails behind `acquire` gives the session back."""
    fence = await store.acquire(session, owner=owner)
    try:
        stored = None if prompt is None else await store.enqueue(session, prompt, client_key=client_key, rest=rest)
        return Begun(fence=fence, prompt=stored, standing=await store.standing(session))
    except BaseException:
        with move_on_after(GIVE_BACK_TIMEOUT, shield=True):
            await _give_back(store, session, fence)
        raise


async def _give_back(store: Store, session: str, fence: int) -> None:
    """Release a session as it is; when that fails, others may have it when its owner is gone."""
    with suppress(StoreError):
        left_open = (await store.unfinished(session)).left_open
        await store.release(session, fence=fence, unfinished=left_open)


@cache
def begins_by_steps(kind: type) -> bool:
    """Tell whether a store has no `begin_run`, or one that would go past a step that it does its own way."""
    places = {name: place for place, base in reversed([*enumerate(kind.__mro__)]) for name in vars(base)}
    begin = places.get("begin_run")
    return begin is None or any(places.get(step, begin) < begin for step in _STEPS)
