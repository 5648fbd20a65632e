"""Stores: where sessions live."""

from __future__ import annotations

import os
from os import PathLike

from streamagent.errors import ConfigError
from streamagent.protocols import Store

from .memory import MemoryStore
from .sqlite import SqliteStore


def open_store(store: Store | str | PathLike[str] | None) -> Store:
    """Make a store of what a user names: the path of an SQLite file, a store as it is, `None` for a new memory.

    Raises:
        ConfigError: It is none of these.
    """
    if store is None:
        return MemoryStore()
    if isinstance(store, str | PathLike):
        return SqliteStore(os.fspath(store))
    if not hasattr(store, "write_soon"):
        raise ConfigError(f"{store!r:.80} is not a store; give the path of an SQLite file, or a store")
    return store
