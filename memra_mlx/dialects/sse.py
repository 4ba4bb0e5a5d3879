"""Server-sent events as bytes."""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"

_ENCODER = msgspec.json.Encoder()


def event(name: str, data: Any) -> bytes:
    """A named event with compact JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _ENCODER.encode(data))


def data(obj: Any) -> bytes:
    """An event without a name."""
    return b"data: %b\n\n" % _ENCODER.encode(obj)


def comment(text: str) -> bytes:
    """A line that clients skip. `text` has no line breaks."""
    return b": %b\n\n" % text.encode()
