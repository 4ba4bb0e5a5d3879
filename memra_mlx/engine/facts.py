"""What the engine tells of a loaded model, read from its files and from one short evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache, ChunkedKVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.utils import get_total_parameters

from memra_mlx.cache.kv_state import grows, leaves, merges, nbytes
from memra_mlx.engine.loader import Loaded
from memra_mlx.engine.memory import KvShape
from memra_mlx.engine.protocol import Ready

_PROBE = 8
_CONTEXT_KEYS = ("max_position_embeddings", "max_sequence_length", "seq_length", "max_seq_len", "n_positions", "n_ctx")
_UNKNOWN_CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class Facts:
    """`ready` goes to the server; `shape` predicts memory."""

    ready: Ready
    shape: KvShape


def gather(model: Loaded, context: int = 0) -> Facts:
    """Look at `model`; its window is at most `context` tokens unless that is 0."""
    cache = make_prompt_cache(model.net)
    logits = model.net(mx.array([[0] * _PROBE]), cache=cache)
    mx.eval(logits, [leaf.state for leaf in cache])
    parts = leaves(cache)
    shape = shape_of(parts)
    window = native_context(model.config)
    ready = Ready(
        model_type=str(model.config["model_type"]),
        context=min(window, context) if context > 0 else window,
        vocab_size=int(logits.shape[-1]),
        eos_ids=eos_ids(model.path, model.config),
        lane_kind="batch" if all(merges(leaf) for leaf in parts) else "sequential",
        parameters=int(get_total_parameters(model.net)),
        weight_bytes=model.weight_bytes,
        kv_bytes_per_token=shape.per_token,
        device=device(),
    )
    return Facts(ready, shape)


def device() -> str:
    """The name of the device that evaluates."""
    kind = "gpu" if mx.default_device() == mx.gpu else "cpu"
    return f"{kind}: {mx.device_info().get('device_name', 'unknown')}"


def shape_of(parts: Iterable[Any]) -> KvShape:
    """Measured on the leaves of a cache that holds `_PROBE` tokens."""
    growing, fixed, windows = 0, 0, []
    for leaf in parts:
        match leaf:
            case _ if grows(leaf):
                growing += _row_bytes(leaf)
            case RotatingKVCache():
                windows.append((int(leaf.max_size), _row_bytes(leaf)))
            case ChunkedKVCache():
                windows.append((int(leaf.chunk_size), _row_bytes(leaf)))
            case ArraysCache():
                fixed += int(leaf.nbytes)
            case _:
                growing += -(-nbytes(leaf.state) // _PROBE)
    return KvShape(growing, tuple(windows), fixed)


def _row_bytes(leaf: Any) -> int:
    arrays = [rows for _, rows in cast(list[tuple[str, mx.array]], tree_flatten((leaf.keys, leaf.values)))]
    return sum(rows.nbytes // rows.shape[2] for rows in arrays)


def native_context(config: dict[str, Any]) -> int:
    """The window in tokens that the configuration promises, rope scaling included."""
    text = {**config, **(config.get("text_config") or {})}
    window = next((int(text[key]) for key in _CONTEXT_KEYS if text.get(key)), _UNKNOWN_CONTEXT)
    scaling = text.get("rope_scaling") or {}
    original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
    return max(window, int(original * factor)) if original and factor else window


def eos_ids(path: Path, config: dict[str, Any]) -> list[int]:
    """Ids that end a turn: those of config and generation_config, and the tokenizer's eos token."""
    value = config.get("eos_token_id")
    if value is None:
        value = (config.get("text_config") or {}).get("eos_token_id")
    ids = {value} if isinstance(value, int) else set(value or ())
    ids |= _token_ids(path, _eos_token(path))
    return sorted(ids)


def _eos_token(path: Path) -> str | None:
    token = _optional_json(path / "tokenizer_config.json").get("eos_token")
    return token.get("content") if isinstance(token, dict) else token


def _token_ids(path: Path, token: str | None) -> set[int]:
    if token is None:
        return set()
    decoder = _optional_json(path / "tokenizer_config.json").get("added_tokens_decoder") or {}
    found = {int(key) for key, entry in decoder.items() if entry.get("content") == token}
    if found:
        return found
    added = _optional_json(path / "tokenizer.json").get("added_tokens") or []
    return {int(entry["id"]) for entry in added if entry.get("content") == token}


def _optional_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
