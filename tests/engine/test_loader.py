from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memra_mlx.engine.facts import eos_ids, native_context
from memra_mlx.engine.loader import LoadError, load
from memra_mlx.fixtures import TINY_PATH


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY_PATH, tmp_path / "model"))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def complaint(path: Path) -> str:
    with pytest.raises(LoadError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_whole_model_loads(folder: Path) -> None:
    model = load(folder)
    assert model.config["model_type"] == "qwen3"
    assert model.weight_bytes > 1_000_000


def test_missing_folder(tmp_path: Path) -> None:
    assert "is not a folder" in complaint(tmp_path / "none")


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff"])
def test_bad_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json" in complaint(folder)


def test_unknown_model_type(folder: Path) -> None:
    edit(folder / "config.json", lambda config: config.update(model_type="warp_drive"))
    assert "warp_drive" in complaint(folder)


def test_missing_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "tokenizer" in complaint(folder)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "safetensors" in complaint(folder)


def test_missing_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002-of-00002.safetensors is missing" in complaint(folder)


@pytest.mark.parametrize("keep", [0, 5, 100, 1_000_000])
def test_cut_weights(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert "model.safetensors is cut" in complaint(folder)


def test_weights_of_another_model(folder: Path) -> None:
    edit(folder / "config.json", lambda config: config.update(num_hidden_layers=7))
    assert complaint(folder).startswith("model: ")


def test_context() -> None:
    assert native_context({"max_position_embeddings": 4096}) == 4096
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert native_context({"max_position_embeddings": 40960, "rope_scaling": yarn}) == 131072
    llama = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    assert native_context({"max_position_embeddings": 131072, "rope_scaling": llama}) == 131072
    assert native_context({"text_config": {"max_position_embeddings": 777}}) == 777
    assert native_context({}) == 8192


def test_eos_ids(folder: Path) -> None:
    assert eos_ids(folder, {"eos_token_id": [4084]}) == [4084, 4086]
    edit(folder / "tokenizer_config.json", lambda config: config.update(eos_token={"content": "<|im_start|>"}))
    assert eos_ids(folder, {"eos_token_id": 4084}) == [4084, 4085]
    assert eos_ids(folder / "none", {"text_config": {"eos_token_id": 3}}) == [3]
    assert eos_ids(folder / "none", {}) == []
