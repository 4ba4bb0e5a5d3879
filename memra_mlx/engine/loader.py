"""Loading a model folder: checked first, so that what is wrong with it is said in one line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.utils import load_model

from memra_mlx.cache.kv_state import nbytes

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json")
_HEADER = 8


class LoadError(Exception):
    """The model cannot be loaded; the message is one line that names the file or the model type."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory and its configuration (generation_config's eos ids merged in, as mlx-lm does)."""

    path: Path
    net: Module
    config: dict[str, Any]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters."""
        return nbytes(self.net.parameters())


def load(path: Path) -> Loaded:
    """Load and evaluate the weights on the calling thread. Raises `LoadError`."""
    _check(path)
    try:
        net, config = load_model(path)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OSError) as fault:
        raise LoadError(f"{path.name}: {_line(fault)}") from fault
    if mx.default_device() == mx.cpu:  # half precision is emulated there
        net.set_dtype(mx.float32)
        mx.eval(net.parameters())
    return Loaded(path, net, config)


def _check(path: Path) -> None:
    if not path.is_dir():
        raise LoadError(f"{path} is not a folder")
    config = _json(path / "config.json")
    if not config.get("model_type"):
        raise LoadError(f"{path / 'config.json'} has no model_type")
    if not any((path / name).is_file() for name in _TOKENIZERS):
        raise LoadError(f"{path} has no tokenizer (looked for {', '.join(_TOKENIZERS)})")
    shards = _shards(path)
    if not shards:
        raise LoadError(f"{path} has no model*.safetensors")
    for shard in shards:
        _check_shard(shard)


def _shards(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return [path / name for name in sorted(set(_json(index).get("weight_map", {}).values()))]
    return sorted(path.glob("model*.safetensors"))


def _check_shard(path: Path) -> None:
    """A cut download is told from its header alone."""
    if not path.is_file():
        raise LoadError(f"{path} is missing, though the index names it")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_HEADER), "little")
        if not 2 <= length <= size - _HEADER:
            raise LoadError(f"{path} is cut or not a safetensors file ({size} bytes)")
        try:
            header = json.loads(file.read(length))
        except ValueError as fault:
            raise LoadError(f"{path} is not a safetensors file: {_line(fault)}") from fault
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    expected = _HEADER + length + max(ends, default=0)
    if size < expected:
        raise LoadError(f"{path} is cut: {size} bytes of {expected}")


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as fault:
        raise LoadError(f"{path} is missing") from fault
    except (OSError, ValueError) as fault:
        raise LoadError(f"{path} cannot be read: {_line(fault)}") from fault
    if not isinstance(value, dict):
        raise LoadError(f"{path} is not a JSON object")
    return value


def _line(fault: Exception) -> str:
    text = next(iter(str(fault).splitlines()), "") or type(fault).__name__
    return text if len(text) <= 300 else text[:300] + "…"
