"""The invariants of what is around a session: its readers, other tenants, logs, its file. See `invariants`."""

from __future__ import annotations

import json

from .evidence import Evidence, told
from .lint import Problems

WIDEST = 64 * 1024  # bytes of UTF-8: as stores promise


def i10(e: Evidence) -> Problems:
    """Bounds: a row is read in pieces, so that no reader holds more of it than one."""
    if e.widest > WIDEST:
        yield f"a fragment of {e.widest} bytes was read, {WIDEST} are the most"


def i14(e: Evidence) -> Problems:
    """Isolation: other tenants find nothing of it."""
    own = {row.id for row in e.rows}
    for row in e.foreign:
        if row.id in own:
            yield f"another tenant reads {told(row)}"


def i17(e: Evidence) -> Problems:
    """Redaction: no secret is in a row, in what was shown, or in a log."""
    texts = [(f"row {row.sequence}", f"{row.content} {json.dumps(row.query, ensure_ascii=False)}") for row in e.rows]
    texts += [("what a viewer saw", text) for viewer in e.shown for text in viewer.texts.values()]
    texts += [("a log", text) for text in e.logs]
    for secret in e.secrets:
        yield from (f"a secret is in {place}" for place, text in texts if secret in text)


def i20(e: Evidence) -> Problems:
    """Storage: its file is whole."""
    if e.damage:
        yield e.damage
