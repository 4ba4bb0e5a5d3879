"""The real agent CLIs, headless: each run is one process with a private HOME that sees no network but the server."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = ROOT / ".clients" / "node_modules" / ".bin"
TIMEOUT_S = 240
NOWHERE = "http://127.0.0.1:9"  # the discard port: whatever goes there fails at once


@dataclass(frozen=True)
class Setting:
    """Where a client runs: the server, the model, its private HOME, its folder to work in, how long it may take."""

    base: str
    model: str
    home: Path
    folder: Path
    patience_s: float = TIMEOUT_S


@dataclass(frozen=True)
class Outcome:
    """What a client left: its final text, exit status, and all that it printed."""

    final: str
    code: int
    printed: str


Client = Callable[[Setting, str, bool], Outcome]


def execute(argv: Sequence[str | Path], setting: Setting, env: Mapping[str, str]) -> tuple[str, str, int]:
    """Run a client to its end: (stdout, stderr, exit status). Past the time limit it is killed and says so."""
    clean = {"PATH": os.environ["PATH"], "HOME": str(setting.home), "PWD": str(setting.folder), "TERM": "dumb"}
    offline = {"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1,localhost"}
    lower = {name.lower(): value for name, value in offline.items()}
    process = subprocess.Popen(
        [str(arg) for arg in argv], cwd=setting.folder, env={**clean, "LANG": "C.UTF-8", **offline, **lower, **env},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=setting.patience_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        err += f"\nkilled after {setting.patience_s} s"
    return out, err, process.returncode


def claude(setting: Setting, prompt: str, resume: bool) -> Outcome:
    """Claude Code over /v1/messages."""
    roles = ("MODEL", "SMALL_FAST_MODEL", "DEFAULT_HAIKU_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_OPUS_MODEL")
    env = {f"ANTHROPIC_{role}": setting.model for role in roles}
    env |= {"ANTHROPIC_BASE_URL": setting.base, "ANTHROPIC_AUTH_TOKEN": "local"}
    switches = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "IS_SANDBOX")
    env |= {"CLAUDE_CODE_SUBAGENT_MODEL": setting.model, **dict.fromkeys(switches, "1")}
    argv = [
        BIN / "claude",
        "-p",
        prompt,
        *(["-c"] if resume else []),
        "--allowedTools",
        "Bash Read Edit Write Glob Grep",
    ]
    out, err, code = execute(argv, setting, env)
    return Outcome(out.strip(), code, out + err)


CODEX_TOML = """\
model = {model}
model_provider = "local"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.local]
name = "Local"
base_url = {base}
wire_api = "responses"
env_key = "LOCAL_API_KEY"

[analytics]
enabled = false
"""


def codex(setting: Setting, prompt: str, resume: bool) -> Outcome:
    """Codex over /v1/responses."""
    config = setting.home / ".codex"
    config.mkdir(parents=True, exist_ok=True)
    values = {"model": json.dumps(setting.model), "base": json.dumps(setting.base + "/v1")}
    (config / "config.toml").write_text(CODEX_TOML.format(**values))
    final = setting.home / "final.txt"
    final.unlink(missing_ok=True)
    where = ["resume", "--last"] if resume else ["-C", setting.folder, "--color", "never"]
    argv = [BIN / "codex", "exec", *where, "--skip-git-repo-check", "-o", final, prompt]
    out, err, code = execute(argv, setting, {"CODEX_HOME": str(config), "LOCAL_API_KEY": "local"})
    return Outcome(final.read_text().strip() if final.exists() else "", code, out + err)


def opencode(setting: Setting, prompt: str, resume: bool) -> Outcome:
    """opencode over /v1/chat/completions."""
    limits = {"context": 131072, "output": 8192}
    model = {"name": "Local", "reasoning": True, "tool_call": True, "limit": limits}
    options = {"baseURL": setting.base + "/v1", "apiKey": "local"}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Local",
        "options": options,
        "models": {setting.model: model},
    }
    name = f"local/{setting.model}"
    config = {"model": name, "small_model": name, "autoupdate": False, "share": "disabled"}
    file = setting.home / ".config" / "opencode" / "opencode.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**config, "enabled_providers": ["local"], "provider": {"local": provider}}))
    switches = ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD")
    argv = [BIN / "opencode", "run", "--auto", "-m", name, *(["-c"] if resume else []), prompt]
    out, err, code = execute(argv, setting, {f"OPENCODE_DISABLE_{switch}": "1" for switch in switches})
    return Outcome(out.strip(), code, out + err)


def pi(setting: Setting, prompt: str, resume: bool) -> Outcome:
    """pi over /v1/chat/completions."""
    limits = {"contextWindow": 131072, "maxTokens": 8192}
    model = {"id": setting.model, "reasoning": True, "input": ["text"], **limits}
    api = {"baseUrl": setting.base + "/v1", "api": "openai-completions", "apiKey": "local"}
    file = setting.home / ".pi" / "agent" / "models.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"providers": {"local": {**api, "models": [model]}}}))
    which = ["--provider", "local", "--model", setting.model, "--thinking", "medium"]
    argv = [BIN / "pi", "-p", *which, *(["-c"] if resume else []), prompt]
    out, err, code = execute(argv, setting, {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"})
    return Outcome(out.strip(), code, out + err)
