"""What an error must not keep: a cursor that is not at its end holds its connection at a state that is over."""

from __future__ import annotations

from traceback import clear_frames


def let_go(error: BaseException) -> None:
    """Free what the frames hold that an error came through, and those that it was raised from."""
    errors: list[BaseException | None] = [error]
    seen: set[int] = set()
    while errors:
        found = errors.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        clear_frames(found.__traceback__)
        errors += found.__cause__, found.__context__
