"""Captures: what is kept, how, and for how long."""

from __future__ import annotations

import json
import stat

from memra_mlx.admission import capture
from memra_mlx.admission.capture import FILE, KEPT, Capture
from memra_mlx.request import Conversation, Image, Message, Request, Text, Tool, ToolCall, ToolResult

MESSAGES = (
    Message("user", (Text("look"), Image(b"\x89P", "image/png"))),
    Message("assistant", (ToolCall("c1", "ls", "{}"),)),
    Message("tool", (ToolResult("c1", (Text("a b"),)),)),
)


def test_a_row_has_messages_prompt_and_receipt(tmp_path):
    request = Request("chat", "m", Conversation(MESSAGES), tools=(Tool("ls", "list", {"type": "object"}),))
    Capture(tmp_path / "capture", 10**6).write(capture.row("r1", "acme", request, "<|user|>look"))
    file = tmp_path / "capture" / FILE
    row = json.loads(file.read_text())
    assert (row["receipt"], row["tenant"], row["prompt"]) == ("r1", "acme", "<|user|>look")
    parts = [part["kind"] for message in row["input"]["messages"] for part in message["parts"]]
    assert parts == ["text", "image", "toolcall", "toolresult"]
    assert row["tools"][0]["parameters"] == {"type": "object"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_files_rotate_and_the_oldest_go(tmp_path):
    store = Capture(tmp_path, 100)
    for i in range(40):
        store.write({"i": i, "pad": "x" * 60})
    files = sorted(tmp_path.iterdir())
    assert len(files) == KEPT
    assert all(file.stat().st_size <= 100 for file in files)
    assert json.loads((tmp_path / FILE).read_text())["i"] == 39
    assert json.loads((tmp_path / f"{FILE}.{KEPT - 1}").read_text())["i"] == 32


def test_a_disk_that_refuses_fails_nothing(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    Capture(tmp_path / "file", 100).write({"i": 1})
    assert "could not be captured" in caplog.text
