"""Claude Code and Codex wait out a prefill that is longer than their idle limits of 300 s."""

import json
from pathlib import Path

import pytest
from clients import Client, Setting, claude, codex
from recorder import Recorder
from served import Served, Settings

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

PREFILL_S = 330
ANSWER = "The kettle is blue."


@pytest.mark.parametrize("client", [claude, codex], ids=["claude", "codex"])
def test_one_request_survives_a_prefill_of_330_s(client: Client, tmp_path: Path) -> None:
    script, home, folder = tmp_path / "script.json", tmp_path / "home", tmp_path / "project"
    script.write_text(json.dumps({"script": [ANSWER], "prefill_s": PREFILL_S, "ctx": 200_000}))
    home.mkdir()
    folder.mkdir()
    server = Served(tmp_path / "server", Settings(args=("--engine", f"scripted:{script}")))
    recorder = Recorder(server.base)
    try:
        setting = Setting(recorder.base, server.model, home, folder, patience_s=3 * PREFILL_S)
        outcome = client(setting, "Say something about the kettle.", False)
        assert (outcome.code, outcome.final) == (0, ANSWER), outcome
        bodies = [json.dumps(e.body, sort_keys=True) for e in recorder.generations()]
        assert len(bodies) == len(set(bodies)), "a request was sent again"
        assert all(e.body["stream"] and e.status == 200 for e in recorder.generations())
    finally:
        recorder.close()
        assert server.close() == 0, server.output
