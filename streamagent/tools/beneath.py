"""Open files below a folder, and nothing else: no way out by `..`, links, or a link that is put there meanwhile."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path
from typing import BinaryIO

from streamagent.errors import ConfigError, ToolError

MAX_NAMES = 50  # of a folder's entries in an error: enough to find a misspelt name

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
# O_NONBLOCK: a pipe that is put in the file's place must not block the thread.
_FILE = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_KERNEL = frozenset({"proc", "sys", "dev"})


def real_root(root: str | os.PathLike[str]) -> str:
    """Return the real path of a folder to read below.

    Raises:
        ConfigError: It is no folder, or this platform cannot open files relative to one.
    """
    if os.open not in os.supports_dir_fd:
        raise ConfigError("this platform cannot open files relative to a folder, so none can be read safely")
    path = os.path.realpath(root)
    if not Path(path).is_dir():
        raise ConfigError(f"{str(root)!r} is no folder to read from")
    return path


def open_beneath(root: str, path: str) -> BinaryIO:
    """Open a regular file below `root`, which a model named.

    Links are followed as long as they stay below; between that look and the opening nothing is followed any more.

    Args:
        root: From `real_root`.
        path: Relative to it, or absolute but below it.

    Raises:
        ToolError: There is no such file, it is outside, or no regular file; the text helps to find the right one.
    """
    try:
        return os.fdopen(_walk(root, path), "rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no valid path"
        raise ToolError(f"cannot read {path!r}: {reason}") from error


def _inside(root: str, path: str) -> tuple[str, ...]:
    """Return the real path's parts below `root`."""
    real = Path(os.path.realpath(Path(root, path)))
    if not real.is_relative_to(root):
        raise ToolError(f"{path!r} is outside of the folder that can be read; give a path relative to that folder")
    parts = real.relative_to(root).parts
    if root == os.sep and parts and parts[0] in _KERNEL:
        raise ToolError(f"{path!r} belongs to the system's kernel and cannot be read")
    return parts


def _walk(root: str, path: str) -> int:
    """Open part by part, each relative to the one before, following no link; return the file's descriptor."""
    parts = _inside(root, path)
    folder = os.open(root, _FOLDER)
    try:
        for depth, part in enumerate(parts):
            try:
                kind = os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode
            except FileNotFoundError as error:
                where = "/".join(parts[:depth]) or "."
                raise ToolError(f"there is no {path!r}; {_listing(folder, where)}") from error
            if depth == len(parts) - 1 and not stat.S_ISDIR(kind):
                return _open_regular(part, folder, kind)
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        raise ToolError(f"{path!r} is a folder, not a file; {_listing(folder, '/'.join(parts) or '.')}")
    finally:
        os.close(folder)


def _open_regular(name: str, folder: int, kind: int) -> int:
    """Open a file that is regular before and after: to open a device may already do something."""
    if stat.S_ISREG(kind):
        file = os.open(name, _FILE, dir_fd=folder)
        if stat.S_ISREG(os.fstat(file).st_mode):
            return file
        os.close(file)
    raise ToolError(f"{name!r} is no regular file but a device, pipe, socket or broken link")


def _listing(folder: int, where: str) -> str:
    """Name some of a folder's entries, folders with a slash."""
    with os.scandir(folder) as entries:
        found = list(itertools.islice(entries, MAX_NAMES + 1))
    names = sorted(
        f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in found[:MAX_NAMES]
    )
    if not names:
        return f"the folder {where!r} is empty"
    return f"the folder {where!r} has: {', '.join(names)}{', and more' if len(found) > MAX_NAMES else ''}"
