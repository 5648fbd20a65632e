"""SQLite files: whether one is whole, and whether one that is not ours to change is left as it was (I20)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from streamagent.errors import StoreError
from streamagent.protocols import Store


def damage_of(path: str | None) -> str:
    """Say what SQLite itself finds wrong with a file.

    Args:
        path: The file; of none, and of a database in memory, nothing is said.
    """
    if path is None or not Path(path).is_file():
        return ""
    with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as db:
        try:
            [found] = db.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            found = str(error)
    return "" if found == "ok" else f"{path} is damaged: {found}"


async def check_refused(store: Store, path: str) -> str:
    """Check that a store does not open its file, and leaves it as it is: it is damaged, or of a newer version (I20).

    Args:
        store: The store, not open.
        path: Its file.

    Returns:
        What it says.

    Raises:
        AssertionError: It was opened, or changed.
    """
    before = _content(path)
    said = ""
    try:
        async with store:
            pass
    except StoreError as error:
        said = str(error)
    if not said:
        raise AssertionError(f"I20: {path} was opened")
    if _content(path) != before:
        raise AssertionError(f"I20: {path} was changed")
    return said


def _content(path: str) -> bytes:
    return Path(path).read_bytes()
