"""How much memory this process has and had; imports little, as it is there when imports are measured."""

import resource
import sys
from contextlib import suppress
from pathlib import Path

_STATM = Path("/proc/self/statm")
_STATUS = Path("/proc/self/status")
_REFERENCES = Path("/proc/self/clear_refs")
_IO = Path("/proc/self/io")
_FORGET_PEAK = "5"  # proc(5)


def rss() -> int:
    """Return the resident memory of this process in bytes; where there is no `/proc`, the highest so far."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024


def forget_peak() -> None:
    """Let the highest resident memory so far be what it is now, where the system can."""
    with suppress(OSError):
        _REFERENCES.write_text(_FORGET_PEAK)


def peak() -> int:
    """Return the highest resident memory, in bytes, since `forget_peak`."""
    return _field(_STATUS, "VmHWM") * 1024 or rss()


def written() -> int:
    """Return how many bytes this process has written to disks, in whole pages; 0 where the system does not tell."""
    return _field(_IO, "write_bytes")


def _field(path: Path, name: str) -> int:
    with suppress(OSError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[0])
    return 0
