"""The script that makes the real model of the benchmarks: its decoders against plain loops, and the rest of it."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import convert_gemma
import numpy as np
import pytest
from jinja2 import Environment

PIECES = ["<pad>", "<eos>", "<bos>", "<unk>", "<end_of_turn>", "\n\n", "a", "b", "c", "ab", "abc", "bc", "▁", "▁a"]
SCORES = [-1000.0] * 6 + [-9.0, -9.0, -9.0, -2.0, -3.0, -1.0, -9.0, -4.0]
KINDS = [3, 3, 3, 3, 3, 4, *[1] * 8]
BYTES = [f"<0x{number:02X}>" for number in range(256)]
FACTS = {
    "tokenizer.ggml.tokens": PIECES + BYTES,
    "tokenizer.ggml.scores": SCORES + [0.0] * 256,
    "tokenizer.ggml.token_type": KINDS + [6] * 256,
}


def half(raw: bytes) -> float:
    return float(struct.unpack("<e", raw)[0])


def q8_0(raw: bytes) -> list[float]:
    return [half(raw[:2]) * value for value in struct.unpack("<32b", raw[2:])]


def q5_0(raw: bytes) -> list[float]:
    high, low = int.from_bytes(raw[2:6], "little"), raw[6:]
    nibbles = [low[i] & 15 if i < 16 else low[i - 16] >> 4 for i in range(32)]
    return [half(raw[:2]) * ((nibbles[i] | (high >> i & 1) << 4) - 16) for i in range(32)]


def q4_k(raw: bytes) -> list[float]:
    scale, minimum, packed, low = half(raw[:2]), half(raw[2:4]), raw[4:16], raw[16:]
    out = []
    for i in range(256):
        j = i // 32
        if j < 4:
            s, m = packed[j] & 63, packed[j + 4] & 63
        else:
            s = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4
            m = packed[j + 4] >> 4 | packed[j] >> 6 << 4
        byte = low[i // 64 * 32 + i % 32]
        out.append(scale * s * (byte >> 4 if i % 64 >= 32 else byte & 15) - minimum * m)
    return out


def q6_k(raw: bytes) -> list[float]:
    scales = struct.unpack("<16b", raw[192:208])
    out = []
    for i in range(256):
        at, part, column = i // 128, i % 128 // 32, i % 32
        byte = raw[at * 64 + part % 2 * 32 + column]
        pair = raw[128 + at * 32 + column] >> 2 * part & 3
        value = (byte >> 4 if part >= 2 else byte & 15) | pair << 4
        out.append(half(raw[208:]) * scales[i // 16] * (value - 32))
    return out


@pytest.mark.parametrize(
    ("kind", "plain", "halves"), [(8, q8_0, (0,)), (6, q5_0, (0,)), (12, q4_k, (0, 2)), (14, q6_k, (208,))]
)
def test_blocks(kind: int, plain: Callable[[bytes], list[float]], halves: tuple[int, ...]) -> None:
    form = convert_gemma.FORMATS[kind]
    blocks = np.random.default_rng(kind).integers(0, 256, (3, form.size), np.uint8)
    for at in halves:
        blocks[:, at : at + 2] = np.frombuffer(struct.pack("<e", 0.37), np.uint8)
    expected = [plain(block.tobytes()) for block in blocks]
    np.testing.assert_allclose(form.decode(blocks), expected, rtol=1e-5, atol=1e-4)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def small_file() -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 3)
    head += text("name") + struct.pack("<I", 8) + text("tiny")
    head += text("count") + struct.pack("<II", 4, 7)
    head += text("list") + struct.pack("<IIQff", 9, 6, 2, 0.5, 1.5)
    head += text("a.weight") + struct.pack("<IQQIQ", 2, 3, 2, 0, 0)
    head += text("b.weight") + struct.pack("<IQIQ", 1, 32, 8, 32)
    head += bytes(-len(head) % 32)
    values = struct.pack("<6f", *range(6))
    return head + values + bytes(32 - len(values)) + struct.pack("<e32b", 2.0, *range(32))


def test_reader() -> None:
    file = convert_gemma.Gguf(memoryview(small_file()))
    assert file.facts == {"name": "tiny", "count": 7, "list": [0.5, 1.5]}
    assert file.weights("a.weight").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.weights("b.weight").tolist() == [2.0 * i for i in range(32)]


def test_another_file() -> None:
    with pytest.raises(ValueError, match="not a GGUF file"):
        convert_gemma.Gguf(memoryview(b"PK" + bytes(30)))


def test_names() -> None:
    assert convert_gemma.renamed("blk.3.ffn_norm.weight") == "model.layers.3.pre_feedforward_layernorm.weight"
    assert convert_gemma.renamed("output_norm.weight") == "model.norm.weight"


def test_better_scores_are_merged_first() -> None:
    assert convert_gemma.merges(PIECES, SCORES) == [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c"), ("▁", "a")]


def test_tokenizer(tmp_path: Path) -> None:
    made = convert_gemma.tokenizer(FACTS)
    assert made.encode("abc a<end_of_turn>\n\n").tokens == ["<bos>", "abc", "▁a", "<end_of_turn>", "\n\n"]
    assert made.decode(made.encode("abc aé b").ids) == "abc aé b"
    made.save(str(tmp_path / "tokenizer.json"))
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["byte_fallback"]


def test_template() -> None:
    messages = [
        {"role": "system", "content": "Be brief. "},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "Three"},
    ]
    template = Environment().from_string(convert_gemma.TEMPLATE)
    assert template.render(bos_token="<bos>", messages=messages, add_generation_prompt=True) == (
        "<bos><start_of_turn>user\nBe brief.\n\nOne<end_of_turn>\n<start_of_turn>model\nTwo<end_of_turn>\n"
        "<start_of_turn>user\nThree<end_of_turn>\n<start_of_turn>model\n"
    )
