"""Log lines: plain text, or one JSON object a line. Never a prompt, an answer or a key."""

from __future__ import annotations

import logging
import sys

import msgspec


class JsonLines(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Time (unix seconds), level, logger and message; the trace where there is one."""
        row = {"time": round(record.created, 3), "level": record.levelname, "logger": record.name}
        row["message"] = record.getMessage()
        if record.exc_info:
            row["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(row).decode()


def setup(as_json: bool) -> None:
    """Send the `memra` loggers to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonLines() if as_json else plain)
    root = logging.getLogger("memra")
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    root.propagate = False
    for name in ("sanic.error", "sanic.server", "sanic.root"):
        logging.getLogger(name).handlers[:] = [handler]
        logging.getLogger(name).setLevel(logging.WARNING)
