"""How much memory this process has; imports little, as it is there when imports are measured."""

import resource
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")


def rss() -> int:
    """Return the resident memory of this process in bytes; where there is no `/proc`, the highest so far."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
