"""`SessionBlock`: a session for the length of an `async with`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from anyio import CancelScope

if TYPE_CHECKING:
    from types import TracebackType

    from .session import Session


class SessionBlock:
    """Gives a session, and cuts what still runs of it when the block is left.

    It is no generator: each of those keeps a frame, which is more than all that an idle session needs.

    Args:
        session: The session.
        check: Is called with its id when the block is entered; it raises when that cannot be.
    """

    __slots__ = ("_check", "_session")

    def __init__(self, session: Session, check: Callable[[str], object]) -> None:
        self._session = session
        self._check: Callable[[str], object] | None = check

    async def __aenter__(self) -> Session:
        check, self._check = self._check, None
        if check is not None:
            check(self._session.id)
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with CancelScope(shield=True):  # bounded: closing a run is
            await self._session.aclose()
