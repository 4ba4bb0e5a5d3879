"""Capture: prompts of tenants that agreed to it, on disk, for the operator. Off unless armed.

Rotating JSON lines, readable by the owner alone: the translated messages, the exact rendered prompt, and the id of the
receipt that both belong to.
"""

from __future__ import annotations

import base64
import dataclasses
import logging
import os
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from memra_mlx.request import Request

log = logging.getLogger("memra.capture")

FILE = "capture.jsonl"
KEPT = 8  # files, the one being written included


class Capture:
    """Writes captures into `folder`, a new file every `limit` bytes. Callable from any thread."""

    def __init__(self, folder: Path, limit: int):
        self._folder = folder
        self._limit = limit
        self._lock = threading.Lock()

    def write(self, row: dict[str, Any]) -> None:
        """Append one line. A disk that refuses is logged; no request fails for it."""
        line = msgspec.json.encode(row) + b"\n"
        try:
            with self._lock:
                self._append(line)
        except OSError as fault:
            log.error("a prompt could not be captured in %s: %s", self._folder, fault)

    def _append(self, line: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self._folder / FILE
        if file.exists() and file.stat().st_size + len(line) > self._limit:
            self._rotate()
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "ab") as out:
            out.write(line)

    def _rotate(self) -> None:
        files = [self._folder / FILE, *(self._folder / f"{FILE}.{i}" for i in range(1, KEPT))]
        for newer, older in reversed(list(pairwise(files))):
            if newer.exists():
                newer.replace(older)


def row(receipt: str, tenant: str, request: Request, rendered: str) -> dict[str, Any]:
    """What is kept of a request: as it was translated, and as the model reads it."""
    kept: dict[str, Any] = {"receipt": receipt, "tenant": tenant, "dialect": request.dialect, "model": request.model}
    return {**kept, "input": _plain(request.input), "tools": _plain(request.tools), "prompt": rendered}


def _plain(value: Any) -> Any:
    """Dataclasses as JSON values, each with the name of its class; bytes as base64."""
    if dataclasses.is_dataclass(value):
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__.lower(), **fields}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
