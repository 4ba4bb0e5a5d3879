"""Log lines: plain text, or one JSON object a line. Never a prompt, an answer or a key.

`line(log, "meter", receipt=…, prompt=3)` is one flat event: `meter receipt=… prompt=3` as text, its fields as JSON.
Within a request each line carries its id.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar

import msgspec

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
Value = str | int | float | bool | None


class JsonLines(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Time (unix seconds), level, logger, message and request id; the fields of an event; the trace, if any."""
        row: dict[str, Value] = {"time": round(record.created, 3), "level": record.levelname, "logger": record.name}
        row["message"] = record.getMessage()
        if request_id := REQUEST_ID.get():
            row["request_id"] = request_id
        row |= getattr(record, "fields", {})
        if record.exc_info:
            row["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(row).decode()


class Plain(logging.Formatter):
    """Text for a terminal, always one line but for a trace."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname).1s %(name)s: %(message)s%(request)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the request's id at its end."""
        request_id = REQUEST_ID.get()
        record.request = f" [{request_id}]" if request_id else ""
        return super().format(record)


def line(log: logging.Logger, event: str, **fields: Value) -> None:
    """Log one flat event."""
    log.info(f"{event} %s", " ".join(f"{k}={_word(v)}" for k, v in fields.items()), extra={"fields": fields})


def _word(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = "-" if value is None or value == "" else str(value)
    return msgspec.json.encode(text).decode() if any(c.isspace() or not c.isprintable() for c in text) else text


def setup(as_json: bool) -> None:
    """Send the `memra` loggers to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else Plain())
    root = logging.getLogger("memra")
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    root.propagate = False
    for name in ("sanic.error", "sanic.server", "sanic.root"):
        logging.getLogger(name).handlers[:] = [handler]
        logging.getLogger(name).setLevel(logging.WARNING)
