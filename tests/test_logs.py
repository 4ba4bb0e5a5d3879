"""Log lines: one event is one line, as text and as JSON."""

from __future__ import annotations

import json
import logging

from memra_mlx import logs


class Kept(logging.Handler):
    def __init__(self, formatter):
        super().__init__()
        self.setFormatter(formatter)
        self.lines = []

    def emit(self, record):
        self.lines.append(self.format(record))


def written(formatter, **fields):
    log = logging.Logger("memra.test")
    kept = Kept(formatter)
    log.addHandler(kept)
    token = logs.REQUEST_ID.set("req_1")
    try:
        logs.line(log, "meter", **fields)
    finally:
        logs.REQUEST_ID.reset(token)
    return kept.lines[0]


def test_text():
    line = written(logs.Plain(), receipt="r1", model="a b\nc", seconds=0.12345, key=None)
    assert line.endswith(r'meter receipt=r1 model="a b\nc" seconds=0.123 key=- [req_1]')
    assert "\n" not in line


def test_json():
    row = json.loads(written(logs.JsonLines(), receipt="r1", prompt=3))
    assert (row["request_id"], row["receipt"], row["prompt"], row["level"]) == ("req_1", "r1", 3, "INFO")
    assert row["message"] == "meter receipt=r1 prompt=3"
