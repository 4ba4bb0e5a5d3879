"""Names and heads of KV files: all that can be told of them without MLX.

key of an entry = model (8 bytes) | kind | block's key (16) | parent's key (16) | tokens (4 bytes, 0 for a mark)
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any, BinaryIO

from memra_mlx.cache.kv_tier import Key, Kind

FOLDER = "kv"
KINDS: dict[Kind, bytes] = {"block": b"b", "mark": b"m"}
MODEL = 8  # bytes of a model's name
CHECK, UNCHECKED = "check", "0" * 10
_KEY, _WIDTH = 16, 4
_HEAD_LIMIT = 1 << 24  # bytes
_CHUNK = 1 << 22


class Damaged(Exception):
    """A file that is not what was written."""


@dataclass(frozen=True, slots=True)
class Name:
    """The key of an entry, in parts. `length` in tokens, 0 for a mark."""

    kind: Kind
    key: Key
    parent: Key
    length: int

    def packed(self, model: bytes) -> bytes:
        """As it stands in the cache."""
        return model + KINDS[self.kind] + self.key + self.parent + self.length.to_bytes(_WIDTH, "little")

    @classmethod
    def parsed(cls, key: bytes, model: bytes) -> Name | None:
        """From the cache; None for an entry of another model, or of no such form."""
        body = key.removeprefix(model)
        kind = next((kind for kind, letter in KINDS.items() if body.startswith(letter)), None)
        if kind is None or len(key) != MODEL + 1 + 2 * _KEY + _WIDTH or len(body) == len(key):
            return None
        own, parent, length = body[1 : 1 + _KEY], body[1 + _KEY : 1 + 2 * _KEY], body[1 + 2 * _KEY :]
        return cls(kind, own, parent, int.from_bytes(length, "little"))


def head(file: BinaryIO, label: str) -> dict[str, Any]:
    """What the head tells of the tree, if head and length are those that were written under `label`.

    Raises `Damaged`, or what JSON raises.
    """
    size = int.from_bytes(file.read(8), "little")
    body = file.read(size) if size <= _HEAD_LIMIT else b""
    entries = json.loads(body)
    metadata = entries["__metadata__"]
    clean = body.replace(metadata[CHECK].encode(), UNCHECKED.encode(), 1)
    if f"{zlib.crc32(clean):010d}" != metadata[CHECK]:
        raise Damaged("its head is damaged")
    told: dict[str, Any] = json.loads(metadata["memra"])
    if file.seek(0, 2) != 8 + size + told["size"]:
        raise Damaged("it was cut")
    if told["label"] != label:
        raise Damaged("it is another one")
    file.seek(0)
    return told


def verify(file: BinaryIO, label: str) -> None:
    """Read a file to its end. Raises `Damaged` unless every byte is as it was written under `label`."""
    try:
        told = head(file, label)
        size = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(size))
        for n, expected in enumerate(told["crc"]):
            begin, end = entries[str(n)]["data_offsets"]
            file.seek(8 + size + begin)
            if _crc(file, end - begin) != expected:
                raise Damaged("its data are damaged")
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as fault:
        raise Damaged(str(fault)) from fault


def _crc(file: BinaryIO, left: int) -> int:
    total = 0
    while left > 0 and (data := file.read(min(left, _CHUNK))):
        total = zlib.crc32(data, total)
        left -= len(data)
    return total
