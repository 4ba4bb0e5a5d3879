"""How the engine process of a model is started: from a model's location to its folder and the child's command line."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from memra_mlx.config import Config, ConfigError, ModelSpec
from memra_mlx.engine import scripted
from memra_mlx.engine.client import EngineCommand
from memra_mlx.errors import ApiError
from memra_mlx.fixtures import TINY_PATH

_FILES = ["*.json", "*.jinja", "*.safetensors", "*.txt", "*.model", "*.tiktoken"]

_LEAST_CONTEXT = 2048  # with less, the first request would spoil the model for all others


def command(config: Config, spec: ModelSpec, ctx_size: int = 0) -> tuple[EngineCommand, Path]:
    """The command of the engine for `spec`, and the local folder of its model. Downloads a hub id if it must.

    `ctx_size` (tokens, 0: none) is the context that a client asks for; the configured one bounds it. Raises a 503
    `model_load_failed` where there is no such model.
    """
    kind, _, file = config.engine.partition(":")
    if kind == "scripted":
        words = Tokenizer.from_file(str(TINY_PATH / "tokenizer.json")).get_vocab_size()
        return scripted.command(Path(file), words, name=spec.id), TINY_PATH
    path = locate(spec.location)
    context = str(_context(config.context, ctx_size))
    arguments = ("--model", str(path), "--context", context, "--kv-bytes", str(config.kv_bytes))
    disk = ("--disk", str(config.cache_dir), "--disk-bytes", str(config.disk_bytes))
    return EngineCommand.module(spec.id, "memra_mlx.engine", *arguments, *disk), path


def _context(configured: int, asked: int) -> int:
    if not asked:
        return configured
    asked = max(asked, _LEAST_CONTEXT)
    return min(asked, configured) if configured else asked


def check(config: Config) -> None:
    """Raise `ConfigError` for an engine that does not exist."""
    kind, _, file = config.engine.partition(":")
    if kind not in ("mlx", "scripted") or (kind == "mlx") == bool(file):
        raise ConfigError(f"engine: {config.engine!r} is not known; accepted: mlx, scripted:FILE")
    if file and not Path(file).is_file():
        raise ConfigError(f"engine: the script {file} does not exist")


def locate(location: str) -> Path:
    """The local folder of a model: a path, or a hub id (from the hub's cache, or downloaded)."""
    path = Path(location).expanduser()
    if path.is_dir():
        return path
    if path.exists() or location.startswith((".", "/", "~")) or location.count("/") != 1:
        raise ApiError("unavailable", f"{location} is not a model folder or a hub id", code="model_load_failed")
    from huggingface_hub import snapshot_download  # costs a third of the server's start, and few starts need it
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(location, allow_patterns=_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as fault:
        reason = str(fault).splitlines()[0]
        raise ApiError("unavailable", f"{location} cannot be fetched: {reason}", code="model_load_failed") from fault
