"""The one frozen configuration, and the only place that reads the environment and files.

Precedence: flag > environment > `config.toml` > default. Each option is a row of `OPTIONS`; `Config.sources` says where
each value came from (`memra-mlx config show`).
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import platformdirs

from memra_mlx.cache.seal import parse_keys
from memra_mlx.fixtures import TINY_ID, TINY_PATH

APP = "memra-mlx"


class ConfigError(Exception):
    """A value that cannot be used; the message names the option and its source."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model to serve: the id that clients use, and a folder or hub id."""

    id: str
    location: str


@dataclass(frozen=True, slots=True)
class Alias:
    """Requests for `pattern` (exact, `prefix*`, or `*`) are served by `model`."""

    pattern: str
    model: str


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its field in `Config`, environment variable, parser and default."""

    name: str
    parse: Callable[[Any], Any]
    default: Any
    help: str
    secret: bool = False  # `config show` does not print it

    @property
    def env(self) -> str:
        """The environment variable."""
        return "MEMRA_" + self.name.upper()


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("must be a whole number")
    number = int(value)
    if number < 0:
        raise ValueError("must not be negative")
    return number


_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _size(value: Any) -> int:
    """Bytes: a number, or one with a unit (`512 MiB`, `8G`)."""
    if isinstance(value, str):
        text = value.strip().lower().removesuffix("b").removesuffix("i").strip()
        if text and text[-1] in _UNITS:
            return int(float(text[:-1]) * _UNITS[text[-1]])
        value = text
    return _whole(value)


def _seconds(value: Any) -> float:
    number = float(value)
    if not 0 <= number < 1e9:
        raise ValueError("must be a number of seconds, not negative")
    return number


def _share(value: Any) -> float:
    number = float(value)
    if not 0 <= number <= 1:
        raise ValueError("must be a share, 0 to 1")
    return number


def _flag(value: Any) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError("must be true or false")


def _path(value: Any) -> Path:
    return Path(_text(value) if not isinstance(value, Path) else value).expanduser()


def _port(value: Any) -> int:
    port = _whole(value)
    if port > 65535:
        raise ValueError("must be a port, 0 to 65535")
    return port


def _list(value: Any) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else list(value)
    return [_text(p).strip() for p in parts if _text(p).strip()]


def model_spec(text: str) -> ModelSpec:
    """Parse `PATH`, `HUB/ID` or `alias=either`."""
    alias, equals, location = text.partition("=")
    if not equals:
        alias, location = "", text
    path = Path(location).expanduser()
    return ModelSpec(alias or (path.resolve().name if path.exists() else location), location)


def _models(value: Any) -> tuple[ModelSpec, ...]:
    specs = tuple(model_spec(text) for text in _list(value))
    ids = [spec.id for spec in specs]
    if len(set(ids)) < len(ids):
        raise ValueError(f"names a model id twice ({', '.join(ids)}); use alias=PATH to tell them apart")
    return specs


def _aliases(value: Any) -> tuple[Alias, ...]:
    pairs = value.items() if isinstance(value, Mapping) else [text.partition("=")[::2] for text in _list(value)]
    aliases = tuple(Alias(pattern.strip(), model.strip()) for pattern, model in pairs)
    if not all(alias.pattern and alias.model for alias in aliases):
        raise ValueError("must be NAME=MODEL")
    return aliases


def _laws(value: Any) -> tuple[tuple[str, str], ...]:
    pairs = value.items() if isinstance(value, Mapping) else [text.rpartition("=")[::2] for text in _list(value)]
    laws = tuple((model.strip(), law.strip()) for model, law in pairs)
    if not laws or not all(law in ("keep", "template") for _, law in laws):
        raise ValueError("must be keep or template, or MODEL=keep, MODEL=template")
    return laws


def _seal_keys(value: Any) -> tuple[bytes, ...]:
    return tuple(parse_keys(_text(value), "it"))


OPTIONS = (
    Option("models", _models, (), "models to serve: PATH, HUB/ID or alias=either"),
    Option("host", _text, "127.0.0.1", "address to bind"),
    Option("port", _port, 8080, "port to bind; 0 takes a free one"),
    Option("engine", _text, "mlx", "mlx, or scripted:FILE for tests"),
    Option("context", _whole, 0, "context window in tokens; 0 is the model's own"),
    Option("kv_bytes", _size, 0, "memory for KV caches; 0 is chosen from the machine"),
    Option("aliases", _aliases, (), "NAME=MODEL, NAME may end in *"),
    Option("any_model", _flag, False, "serve unknown model names with the first model"),
    Option("api_key", _text, "", "require a key; this one belongs to the tenant `default`", secret=True),
    Option("keys", _text, "", "more keys: TENANT=KEY,TENANT=sha256:HEX,…; TENANT/batch=… for bulk work", secret=True),
    Option("keys_file", _path, None, "the keyring; keys.toml in the state dir if not given"),
    Option("insecure_open", _flag, False, "serve without keys on an address that others can reach"),
    Option("metrics_token", _text, "", "who sends this as a key may read all of /metrics", secret=True),
    Option("allow_hosts", lambda v: tuple(_list(v)), (), "extra Host names to accept on loopback"),
    Option("cors_origins", lambda v: tuple(_list(v)), (), "web pages that may use this server, as ORIGIN,… or *"),
    Option("body_limit", _size, 64 << 20, "largest request body in bytes, after decompression"),
    Option(
        "blocking_ms_max",
        _whole,
        0,
        "deadline of a blocking request that sets none, in ms; 0 is 90000 with keys, else 600000",
    ),
    Option("stream_ttft_ms_max", _whole, 0, "longest wait for the first token of a stream, in ms; 0 as above"),
    Option(
        "deadline_partial",
        _flag,
        False,
        "deliver what a blocking answer has at its deadline, where the dialect can say so",
    ),
    Option("slots", _whole, 256, "requests served at once; a key may narrow it for its tenant"),
    Option("queue_limit", _whole, 64, "requests that wait for their first token at once; more are turned away"),
    Option("slo_p99_ms", _whole, 250, "aim for the 99th percentile of the time between interactive tokens, in ms"),
    Option("judge_share", _share, 0.8, "lane judge runs while interactive p99 is below this share of slo_p99_ms"),
    Option("harvest_share", _share, 0.5, "lane harvest runs while interactive p99 is below this share of slo_p99_ms"),
    Option("constrain_tools", _flag, False, "constrain the calls of all tools, not only of strict ones"),
    Option("commit_s", _seconds, 5.0, "how long headers of a stream are held for a real status"),
    Option("keepalive_s", _seconds, 5.0, "silence after which a stream gets a keep-alive"),
    Option("drain_s", _seconds, 30.0, "how long running requests may finish after SIGTERM"),
    Option("health_stall_s", _seconds, 120.0, "an engine busy this long without a step is restarted"),
    Option("worker_respawn", _whole, 3, "engine restarts in ten minutes before the server gives up (exit 70)"),
    Option("state_dir", _path, None, "ledger and keys"),
    Option("cache_dir", _path, None, "disposable caches"),
    Option("disk_bytes", _size, 16 << 30, "disk for KV state, in the cache dir; 0 keeps it in memory alone"),
    Option("transcript_bytes", _size, 512 << 20, "disk for the exact tokens of conversations, in the cache dir"),
    Option(
        "history_reasoning",
        _laws,
        (("", "keep"),),
        "keep hidden reasoning in history, or let the template drop it: keep, template, MODEL=template,…",
    ),
    Option(
        "seal_key",
        _seal_keys,
        (),
        "keys for reasoning that clients carry, the newest first; seal.key in the state dir if not given",
        secret=True,
    ),
    Option("log_json", _flag, False, "log as JSON lines"),
    Option("capture", _flag, False, "keep prompts of tenants that consent, in the state dir"),
    Option("capture_bytes", _size, 64 << 20, "size of a capture file before it is rotated; eight are kept"),
)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of one run; field meanings are the help texts of `OPTIONS`."""

    models: tuple[ModelSpec, ...]
    host: str
    port: int
    engine: str
    context: int
    kv_bytes: int
    aliases: tuple[Alias, ...]
    any_model: bool
    api_key: str
    keys: str
    keys_file: Path | None
    insecure_open: bool
    metrics_token: str
    allow_hosts: tuple[str, ...]
    cors_origins: tuple[str, ...]
    body_limit: int
    blocking_ms_max: int
    stream_ttft_ms_max: int
    deadline_partial: bool
    slots: int
    queue_limit: int
    slo_p99_ms: int
    judge_share: float
    harvest_share: float
    constrain_tools: bool
    commit_s: float
    keepalive_s: float
    drain_s: float
    health_stall_s: float
    worker_respawn: int
    state_dir: Path
    cache_dir: Path
    disk_bytes: int
    transcript_bytes: int
    history_reasoning: tuple[tuple[str, str], ...]
    seal_key: tuple[bytes, ...]
    log_json: bool
    capture: bool
    capture_bytes: int
    sources: Mapping[str, str] = field(compare=False)

    @property
    def keyring_file(self) -> Path:
        """Where the keyring is."""
        return self.keys_file or self.state_dir / "keys.toml"

    def history_law(self, model: str) -> Literal["keep", "template"]:
        """Whether hidden reasoning of `model` stays in history."""
        laws = dict(self.history_reasoning)
        return "template" if laws.get(model, laws.get("", "keep")) == "template" else "keep"

    @property
    def embedded(self) -> bool:
        """Whether the embedded tiny model is served because no model was named."""
        return self.models == (ModelSpec(TINY_ID, str(TINY_PATH)),)


def config_file() -> Path:
    """Where `config.toml` is looked for by default."""
    return Path(platformdirs.user_config_dir(APP)) / "config.toml"


def read_file(path: Path | None) -> Mapping[str, Any]:
    """The settings of a TOML file: `path`, or the default one where that exists. Raises `ConfigError`."""
    chosen = path or config_file()
    if path is None and not chosen.exists():
        return {}
    try:
        return tomllib.loads(chosen.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise ConfigError(f"--config {chosen}: {fault}") from fault


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    values = {option.name: env[option.env] for option in OPTIONS if env.get(option.env)}
    if address := env.get("MEMRA_ADDR"):
        host, _, port = address.rpartition(":")
        values.setdefault("host", host or "127.0.0.1")
        values.setdefault("port", port)
    return values


def _defaults() -> dict[str, Any]:
    values = {option.name: option.default for option in OPTIONS}
    values["models"] = (ModelSpec(TINY_ID, str(TINY_PATH)),)
    values["state_dir"] = Path(platformdirs.user_state_dir(APP))
    values["cache_dir"] = Path(platformdirs.user_cache_dir(APP))
    return values


def load(
    flags: Mapping[str, Any], file: Path | None = None, env: Mapping[str, str] = os.environ
) -> Config:  # the environment is read when called, not when imported
    """Build the configuration. Flags that are None or empty are not set.

    Raises `ConfigError` naming the option, its source, and what is wrong with it.
    """
    settings = read_file(file)
    known = {option.name for option in OPTIONS}
    if unknown := sorted(set(settings) - known):
        raise ConfigError(f"config.toml: unknown key {unknown[0]!r}; known keys: {', '.join(sorted(known))}")
    layers = (("flag", flags), ("environment", _environment(env)), ("config.toml", settings))
    values, sources = _defaults(), {}
    for option in OPTIONS:
        source, raw = next(
            ((s, v[option.name]) for s, v in layers if v.get(option.name) not in (None, (), "")), ("", None)
        )
        sources[option.name] = source or "default"
        if not source:
            continue
        try:
            values[option.name] = option.parse(raw)
        except (ValueError, TypeError) as fault:
            shown = "its value" if option.secret else repr(raw)
            raise ConfigError(f"{option.name} ({source}): {shown} {fault}") from fault
    return Config(**values, sources=sources)
