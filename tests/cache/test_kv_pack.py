"""Trees of arrays as files: the same bits come back, and anything else is damage."""

from __future__ import annotations

import io
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from memra_mlx.cache.kv_file import Damaged, verify
from memra_mlx.cache.kv_pack import Reader, load, pack


def written(tree: Any, label: str = "k", size: int = 1000) -> bytes:
    reader = Reader(pack(tree), label)
    return b"".join(iter(lambda: reader.read(size), b""))


def odd_bits() -> mx.array:
    """Every bfloat16 there is, NaNs included."""
    return mx.arange(1 << 16).astype(mx.uint16).view(mx.bfloat16).reshape(256, 256)


TREE = (
    (odd_bits(), mx.arange(12, dtype=mx.float32).reshape(1, 3, 4)),
    [(mx.arange(6, dtype=mx.uint32), mx.ones((2, 2), mx.float16), mx.zeros((1, 0, 4))), None, 7, True, "x"],
    mx.transpose(mx.arange(12).reshape(3, 4)),
)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_every_bit_and_every_shape_comes_back(size: int) -> None:
    tree = TREE if size > 1 else TREE[1]
    back = load(io.BytesIO(written(tree, size=size)), "k")
    before, after = dict(tree_flatten(tree)), dict(tree_flatten(back))
    assert before.keys() == after.keys()
    for name, array in before.items():
        if isinstance(array, mx.array):
            assert (array.dtype, array.shape) == (after[name].dtype, after[name].shape)
            same = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
            assert mx.array_equal(same, after[name].view(same.dtype)).item()
        else:
            assert array == after[name]
    assert [type(item) for item in back] == [type(item) for item in tree]


def test_any_changed_byte_is_damage() -> None:
    data = written([mx.arange(40, dtype=mx.float32), 3])
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]
        with pytest.raises(Damaged):
            load(io.BytesIO(changed), "k")
        with pytest.raises(Damaged):
            verify(io.BytesIO(changed), "k")
    verify(io.BytesIO(data), "k")


def test_any_cut_is_damage() -> None:
    data = written([mx.arange(40, dtype=mx.float32)])
    for size in (*range(0, len(data), 7), len(data) - 1):
        with pytest.raises(Damaged):
            load(io.BytesIO(data[:size]), "k")
    with pytest.raises(Damaged):
        load(io.BytesIO(data + b"x"), "k")


def test_another_entrys_file_is_damage() -> None:
    with pytest.raises(Damaged, match="another"):
        load(io.BytesIO(written([mx.zeros(3)], "one")), "two")


def test_a_strange_leaf_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        pack([object()])
