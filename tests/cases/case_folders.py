"""Model folders that cannot be loaded, and what the server says about them."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
from served import Served, Settings

from memra_mlx.fixtures import TINY_PATH

END_S = 120.0
SECOND = "model-00002-of-00002.safetensors"


def sharded(folder: Path) -> Path:
    """The embedded model, its weights cut into two files with an index."""
    shutil.copytree(TINY_PATH, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    weights = mx.load(str(TINY_PATH / "model.safetensors"))
    names = sorted(weights)
    halves = {"model-00001-of-00002.safetensors": names[::2], SECOND: names[1::2]}
    for file, keys in halves.items():
        mx.save_safetensors(str(folder / file), {key: weights[key] for key in keys}, {"format": "mlx"})
    index = {"metadata": {}, "weight_map": {key: file for file, keys in halves.items() for key in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _cut(folder: Path) -> None:
    data = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(data[: len(data) // 2])


def _model_type(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "nope"}))


# variant of the case -> what is done to the folder, and what the message must name
VARIANTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "shard missing": (lambda folder: (folder / SECOND).unlink(), SECOND),
    "shard cut to half": (_cut, SECOND),
    "model_type 'nope'": (_model_type, "nope"),
    "tokenizer.json missing": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer"),
}


def failures(variants: Sequence[str], folder: Path) -> list[str]:
    """For each variant: the server must end with an error that names the fault, without a trace."""
    found = []
    for number, variant in enumerate(variants):
        damage, name = VARIANTS[variant]
        model = sharded(folder / f"model-{number}")
        damage(model)
        server = Served(folder / f"run-{number}", Settings([str(model)], wait_ready=False, wait_port=False))
        try:
            code = server.wait(END_S)
        except subprocess.TimeoutExpired:
            found.append(f"{variant}: still running:\n{server.output}")
            continue
        finally:
            server.close()
        if code == 0 or name not in server.output or "Traceback" in server.output:
            found.append(f"{variant}: exit status {code}, wanted an error that names {name}:\n{server.output}")
    return found
