"""`Owner`s are processes: their names, and whether one of this machine still lives."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from contextlib import suppress
from pathlib import Path

from .records import Owner

_NAME = re.compile(r"(?P<place>.*)/(?P<pid>\d+)@(?P<start>\d*)/[0-9a-f]+")

_ended: set[str] = set()


def new_owner(ttl: float) -> Owner:
    """Name this process, anew each time; see `Owner`."""
    pid = os.getpid()
    return Owner(id=f"{_place()}/{pid}@{_start(pid)}/{secrets.token_hex(4)}", ttl=ttl)


def note_end(owner: str) -> None:
    """Take note that an owner of this process has ended and could not say so to its store."""
    _ended.add(owner)


def is_gone(owner: str) -> bool:
    """Tell whether an owner has ended, of this process or as a process of this machine; of others only time tells."""
    if owner in _ended:
        return True
    found = _NAME.fullmatch(owner)
    if found is None or found["place"] != _place() or sys.platform == "win32":
        return False
    pid = int(found["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return _start(pid) != found["start"]


def _place() -> str:
    """Name the machine, and on Linux the namespace in which its process ids count."""
    place = re.sub(r"[^\w.-]", "_", socket.gethostname())
    with suppress(OSError):
        place += f".{Path('/proc/self/ns/pid').stat().st_ino}"
    return place


def _start(pid: int) -> str:
    """Return when a process began, in ticks since the machine did; an id may be given to another one later."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # proc(5): field 22, two are before
        if fields[0] not in ("Z", "X"):
            return fields[19]
    return ""
