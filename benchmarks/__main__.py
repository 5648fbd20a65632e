"""What `python -m benchmarks` begins with: it says what to install where that is missing."""

import sys

_OURS = ("benchmarks", "streamagent", *sys.stdlib_module_names)

try:
    from .command_line import main
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if not missing or missing in _OURS:
        raise
    print(f"{missing} is not installed; from the checkout: pip install -e '.[bench]'", file=sys.stderr)
    sys.exit(2)

main()
