"""A tree of arrays as one safetensors file, and back, bit for bit.

The file's metadata hold the shape of the tree, what in it is no array, and checksums of every array's bytes and of the
head itself. bfloat16, which numpy does not know, travels as uint16. MLX is only given a file whose head and length are
right: it reads on threads of its own, on which a short read ends the process.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from memra_mlx.cache.kv_file import CHECK, UNCHECKED, Damaged, head

_NAMES = {
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "int8": "I8", "int16": "I16", "int32": "I32",
    "int64": "I64", "float16": "F16", "float32": "F32", "bool": "BOOL",
}  # fmt: skip
_VIEWED = {mx.bfloat16: mx.uint16}


@dataclass(frozen=True, slots=True)
class Packed:
    """A tree ready to be written by another thread: its shape, and the memory of its arrays, which stays theirs."""

    tree: Any
    arrays: tuple[np.ndarray[Any, Any], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)


def pack(tree: Any) -> Packed:
    """Evaluate what is lazy in a tree and look at its memory. To be called on the thread that owns MLX."""
    arrays: list[mx.array] = []
    shape = _shape(tree, arrays)
    plain = [array.view(_VIEWED[array.dtype]) if array.dtype in _VIEWED else array for array in arrays]
    plain = [mx.contiguous(array) for array in plain]
    mx.eval(plain)
    return Packed(shape, tuple(np.array(array, copy=False) for array in plain))


def _shape(tree: Any, arrays: list[mx.array]) -> Any:
    match tree:
        case mx.array():
            arrays.append(tree)
            return {"a": len(arrays) - 1, "d": str(tree.dtype).rpartition(".")[2]}
        case tuple():
            return {"t": [_shape(item, arrays) for item in tree]}
        case list():
            return {"l": [_shape(item, arrays) for item in tree]}
        case None | bool() | int() | float() | str():
            return {"v": tree}
    raise TypeError(f"a {type(tree).__name__} can't be stored")


class Reader:
    """The bytes of the file, as a binary file that can be read once."""

    def __init__(self, packed: Packed, label: str) -> None:
        self._parts = [memoryview(_head(packed, label))]
        self._parts += [_bytes(array) for array in packed.arrays if array.size]

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most `size`; none at the end."""
        while self._parts and not self._parts[0]:
            self._parts.pop(0)
        if not self._parts:
            return b""
        part = self._parts[0]
        count = len(part) if size < 0 else size
        self._parts[0] = part[count:]
        return bytes(part[:count])


def _head(packed: Packed, label: str) -> bytes:
    at = 0
    entries: dict[str, Any] = {}
    for n, array in enumerate(packed.arrays):
        dtype = _NAMES[array.dtype.name]
        entries[str(n)] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    told = {"tree": packed.tree, "label": label, "crc": [_crc(array) for array in packed.arrays], "size": at}
    entries["__metadata__"] = {CHECK: UNCHECKED, "memra": json.dumps(told)}
    body = json.dumps(entries).encode()
    body += b" " * (-len(body) % 8)
    body = body.replace(UNCHECKED.encode(), f"{zlib.crc32(body):010d}".encode(), 1)
    return len(body).to_bytes(8, "little") + body


def load(file: BinaryIO, label: str) -> Any:
    """The tree that was written under `label`. Raises `Damaged`. To be called on the thread that owns MLX."""
    try:
        told = head(file, label)
        arrays = cast(dict[str, mx.array], mx.load(file, format="safetensors"))
        found = [arrays[str(n)] for n in range(len(told["crc"]))]
        mx.eval(found)
        _check(found, told["crc"])
        tree = _tree(told["tree"], found)
        mx.eval([leaf for _, leaf in cast(list[tuple[str, Any]], tree_flatten(tree)) if isinstance(leaf, mx.array)])
        return tree
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, OSError) as fault:
        raise Damaged(str(fault)) from fault


def _check(arrays: Sequence[mx.array], sums: Sequence[int]) -> None:
    for array, expected in zip(arrays, sums, strict=True):
        if _crc(np.array(array, copy=False)) != expected:
            raise Damaged("its data are damaged")


def _tree(shape: Any, arrays: Sequence[mx.array]) -> Any:
    if "v" in shape:
        return shape["v"]
    if "a" in shape:
        array, dtype = arrays[shape["a"]], getattr(mx, shape["d"])
        return array.view(dtype) if array.dtype != dtype else array
    if "t" in shape:
        return tuple(_tree(item, arrays) for item in shape["t"])
    return [_tree(item, arrays) for item in shape["l"]]


def _crc(array: np.ndarray[Any, Any]) -> int:
    return zlib.crc32(_bytes(array)) if array.size else 0


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
