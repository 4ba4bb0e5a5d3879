"""The models of this server: names to loaded models, loaded on first use.

A loaded model is its text side (`TextModel`, in this process) and its `Engine` (a process of its own).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from memra_mlx.cache import fingerprint
from memra_mlx.cache.seal import Sealer, SealKeyError, load_keys
from memra_mlx.cache.transcripts import Transcripts
from memra_mlx.config import Config, ModelSpec
from memra_mlx.continuity import History, Settings
from memra_mlx.engine.client import Engine, EngineCommand, Limits
from memra_mlx.engine.protocol import Ready
from memra_mlx.errors import ApiError
from memra_mlx.prompt.text_model import TextModel
from memra_mlx.thread import Keeping

log = logging.getLogger("memra.models")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that can serve."""

    id: str
    text: TextModel
    engine: Engine
    facts: Ready
    defaults: dict[str, Any]  # the model's own generation_config.json
    history: History


@dataclass(slots=True)
class Entry:
    """A model of the configuration and, once loading has begun, its load."""

    spec: ModelSpec
    created: int = field(default_factory=lambda: int(time.time()))
    engine: Engine | None = None
    load: asyncio.Task[Loaded] | None = None

    @property
    def loaded(self) -> Loaded | None:
        """The model, if its load has ended well."""
        task = self.load
        return task.result() if task and task.done() and not task.cancelled() and task.exception() is None else None

    @property
    def phase(self) -> str:
        """unloaded, loading, failed, or the engine's own phase."""
        if self.load is None:
            return "unloaded"
        if not self.load.done():
            return "loading"
        return self.engine.status().phase if self.engine and self.loaded else "failed"


Start = Callable[[ModelSpec, int], tuple[EngineCommand, Path]]


class Models:
    """Resolves names and owns engines. `start` turns a spec and a context (tokens, 0: the configured one) into the
    command of an engine and the local folder of its model."""

    def __init__(self, config: Config, start: Start, on_failed: Callable[[str], None]):
        self._config = config
        self._start = start
        self._on_failed = on_failed
        self._transcripts: Transcripts | None = None
        self._sealer: Sealer | None = None
        self.entries = {spec.id: Entry(spec) for spec in config.models}

    @property
    def default(self) -> Entry:
        """The first model of the configuration."""
        return next(iter(self.entries.values()))

    def resolve(self, name: str) -> Entry:
        """The entry that serves `name`. Raises a 400 `model_not_found` with what is accepted."""
        bare = name.removesuffix("[1m]")
        if entry := self.entries.get(bare):
            return entry
        for alias in self._config.aliases:
            if fnmatchcase(bare, alias.pattern) and alias.model in self.entries:
                return self.entries[alias.model]
        if self._config.any_model:
            return self.default
        known = ", ".join([*self.entries, *(a.pattern for a in self._config.aliases)])
        raise ApiError(
            "model",
            f"model: {name!r} is not served here; served models: {known}. Start the server with --any-model to serve "
            "every name with the first model.",
            param="model",
        )

    async def get(self, entry: Entry, ctx_size: int = 0) -> Loaded:
        """The loaded model of `entry`; loads it first if need be, with that context. Raises a 503 where that fails."""
        if entry.load is None or (entry.load.done() and entry.loaded is None):
            entry.load = asyncio.create_task(self._load(entry, ctx_size))
        return await asyncio.shield(entry.load)

    async def _load(self, entry: Entry, ctx_size: int) -> Loaded:
        began = time.monotonic()
        command, path = await asyncio.to_thread(self._start, entry.spec, ctx_size)
        limits = Limits(stall_s=self._config.health_stall_s, respawn_limit=self._config.worker_respawn)
        engine = entry.engine = Engine(command, limits, on_failed=self._on_failed)
        await engine.start()
        try:
            text = await asyncio.to_thread(self._text, path)
            facts = await engine.ready()
            history = await asyncio.to_thread(self._history, entry.spec.id, path, text, facts)
        except (OSError, ValueError) as fault:
            await engine.close(0)
            raise ApiError("unavailable", f"{path} cannot be used: {fault}", code="model_load_failed") from fault
        except BaseException:
            await engine.close(0)
            raise
        log.info(
            "loaded %s in %.1f s: %s, context %d", entry.spec.id, time.monotonic() - began, facts.device, facts.context
        )
        return Loaded(entry.spec.id, text, engine, facts, _generation_config(path), history)

    def _text(self, path: Path) -> TextModel:
        if script := scripted_file(self._config):
            from memra_mlx.engine import script as scripts

            parsed = scripts.load(script)
            return TextModel.load(path, chat_template=parsed.chat_template(), extra_tokens=scripts.vocabulary(parsed))
        return TextModel.load(path)

    def _history(self, model: str, path: Path, text: TextModel, facts: Ready) -> History:
        if self._transcripts is None:
            self._transcripts = Transcripts(self._config.cache_dir, self._config.transcript_bytes)
            self._sealer = _sealer(self._config)
        settings = Settings(facts.context, self._config.history_law(model))
        known = fingerprint.of_model(path, text.added, text.template)
        return History(Keeping(text, self._transcripts, self._sealer), known, settings)

    async def close(self, drain_s: float) -> None:
        """End all engines; running requests get `drain_s` seconds."""
        engines = [entry.engine for entry in self.entries.values() if entry.engine]
        await asyncio.gather(*(engine.close(drain_s) for engine in engines))


def _sealer(config: Config) -> Sealer | None:
    """Who seals reasoning; without a usable key it goes unsealed, and a log line says so."""
    try:
        return Sealer(config.seal_key or load_keys(config.state_dir))
    except (OSError, SealKeyError) as fault:
        log.warning("reasoning is not sealed: %s", fault)
        return None


def scripted_file(config: Config) -> Path | None:
    """The script of `--engine scripted:FILE`."""
    kind, _, file = config.engine.partition(":")
    return Path(file) if kind == "scripted" else None


def _generation_config(path: Path) -> dict[str, Any]:
    file = path / "generation_config.json"
    try:
        settings = json.loads(file.read_text()) if file.exists() else {}
    except (OSError, ValueError) as fault:
        log.warning("%s is not readable and was left out: %s", file, fault)
        return {}
    return settings if isinstance(settings, dict) else {}
