"""What a command that runs for long logs: one JSON object a line, on standard error."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from typing import Any

_USUAL = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """Write a record as a JSON object: time, level, event, whatever `extra` has, and the error if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one line; what is in it cannot begin another one."""
        at = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _USUAL}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_lines(level: int = logging.INFO) -> None:
    """Log what this package says."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("streamagent")
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
