"""Stores: where sessions live."""

from __future__ import annotations

import os
import re
from os import PathLike

from streamagent.errors import ConfigError
from streamagent.protocols import Store

from .memory import MemoryStore
from .postgres import PostgresStore
from .sqlite import SqliteStore

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_store(store: Store | str | PathLike[str] | None, *, read_only: bool = False) -> Store:
    """Make a store of what a user names: the path of an SQLite file, a PostgreSQL URL, `None` for a new memory.

    Args:
        store: What is named; a store is given back as it is.
        read_only: A store that is made refuses every write.

    Raises:
        ConfigError: It is none of these.
    """
    if store is None:
        return MemoryStore()
    if isinstance(store, str) and is_url(store):
        return PostgresStore(store, read_only=read_only)
    if isinstance(store, str | PathLike):
        return SqliteStore(os.fspath(store), read_only=read_only)
    if not hasattr(store, "write_soon"):
        raise ConfigError(
            f"{store!r:.80} is not a store; give the path of an SQLite file, a PostgreSQL URL, or a store"
        )
    return store


def is_url(text: str) -> bool:
    """Tell whether a text is the URL of a database, and no path.

    Raises:
        ConfigError: It is the URL of something for which there is no store.
    """
    found = _URL.match(text)
    if found is not None and found[1] not in ("postgresql", "postgres"):
        raise ConfigError(f"there is no store for {found[1]}:// URLs; give a path, or postgresql://user@host/database")
    return found is not None
