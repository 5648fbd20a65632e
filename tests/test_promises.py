"""Each promise of docs/promises.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = [line for line in (ROOT / "docs" / "promises.md").read_text().splitlines() if line.startswith("| ")][2:]


def test_each_promise_names_tests_that_exist():
    assert len(ROWS) > 20
    for row in ROWS:
        named = re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", row)
        assert named, row
        path = ""
        for file, name in named:
            path = file or path
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), (path, name)
