"""From a case's `needs` to a running server."""

import http.server
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from case_texts import expand
from served import Served, Settings

from memra_mlx.fixtures import TINY_ID, TINY_PATH

KEY = "sk-test-key-a"
SCRIPT = ("script", "script_turns", "prefill_s", "load_s", "template", "tool_format", "ctx")
DESCRIPTIVE = {
    "engine",
    "ctx",
    "constrained",
    "fresh_server",
    "bind",
    "note",
    "model_id",
    "canary",
    "variants",
    "metrics",
    *SCRIPT,
}


class Unsupported(Exception):
    """The server has no such setting yet, or the runner has no such step."""


def environment(needs: Mapping[str, Any]) -> dict[str, str]:
    """The `MEMRA_*` variables for a case. Raises `Unsupported` for a setting that the server does not have."""
    env: dict[str, str] = {}
    for name, value in needs.items():
        match name:
            case "body_limit":
                env["MEMRA_BODY_LIMIT"] = str(value)
            case "drain_s":
                env["MEMRA_DRAIN_S"] = str(value)
            case "deadline_s":
                env["MEMRA_BLOCKING_MS_MAX"] = env["MEMRA_STREAM_TTFT_MS_MAX"] = str(int(value * 1000))
            case "alias":
                env["MEMRA_ALIASES"] = ",".join(f"{pattern}={TINY_ID}" for pattern in value)
            case "queue_limit":
                env["MEMRA_QUEUE_LIMIT"] = str(value)
            case "keys":
                env["MEMRA_API_KEY"] = KEY if value else ""
            case _ if name not in DESCRIPTIVE:
                raise Unsupported(f"needs.{name}")
    if "ctx" in needs:
        env["MEMRA_CONTEXT"] = str(needs["ctx"])
    return env


def start(needs: Mapping[str, Any], folder: Path) -> Served:
    """A server as `needs` describes it; on a scripted engine unless the case wants a live model."""
    folder.mkdir(parents=True, exist_ok=True)
    args: list[str] = []
    if needs.get("engine") != "live":
        script = {"script": ["ok"], **{key: needs[key] for key in SCRIPT if key in needs}}
        file = folder / "script.json"
        file.write_text(json.dumps(expand(script, {"MODEL": TINY_ID})))
        args += ["--engine", f"scripted:{file}"]
    if "model_id" in needs:
        args.append(f"{needs['model_id']}={TINY_PATH}")
    return Served(folder, Settings(args, environment(needs), wait_ready="load_s" not in needs))


class Canary:
    """A listener that counts connections; nobody should come."""

    def __init__(self) -> None:
        canary = self
        self.seen = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def handle(self) -> None:
                canary.seen += 1

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
