"""Reasoning sealed into opaque text that a client carries: the exact tokens of a segment, for the tenant and the model
that made them alone.

    text = base64url( version | key id | nonce | AES-256-GCM( zstd( tokens ) ) )

The associated data are version, namespace and model fingerprint, so what is opened was sealed here for just this place;
anything else is nothing. Several keys may open, the first one seals: that is how a key is replaced.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from memra_mlx.cache.transcripts import Space

FILE = "seal.key"
_VERSION = b"m1"
_KEY = 32
_ID = 4
_NONCE = 12
_TAG = 16
_WIDTH = 4
_OVERHEAD = 1024  # bytes by which incompressible tokens may grow


class SealKeyError(ValueError):
    """Keys that can't be used; the message says where they come from and what is wrong."""


class Sealer:
    """Seals and opens. `keys` are 32 bytes each; the first one seals."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = {_id(key): AESGCM(key) for key in reversed(keys)}
        self._newest = _id(keys[0])

    def seal(self, space: Space, ids: Iterable[int]) -> str:
        """Token ids as opaque text."""
        packed = zstandard.ZstdCompressor(level=3).compress(array("I", ids).tobytes())
        nonce = secrets.token_bytes(_NONCE)
        head = _VERSION + self._newest + nonce
        return base64.urlsafe_b64encode(
            head + self._ciphers[self._newest].encrypt(nonce, packed, _bound(space))
        ).decode()

    def open(self, space: Space, text: str, limit: int) -> list[int] | None:
        """The token ids, at most `limit`; None for what was not sealed for this space with one of the keys."""
        most = limit * _WIDTH
        if len(text) > (most + _OVERHEAD) * 4 // 3:
            return None
        try:
            data = base64.b64decode(text, altchars=b"-_", validate=True)
            key_id, nonce = data[len(_VERSION) :][:_ID], data[len(_VERSION) + _ID :][:_NONCE]
            sealed = data[len(_VERSION) + _ID + _NONCE :]
            if not data.startswith(_VERSION) or key_id not in self._ciphers or len(sealed) < _TAG:
                return None
            packed = self._ciphers[key_id].decrypt(nonce, sealed, _bound(space))
            return _unpacked(packed, most)
        except (InvalidTag, binascii.Error, zstandard.ZstdError, ValueError):
            return None


def _bound(space: Space) -> bytes:
    """The associated data."""
    parts = (_VERSION, space.namespace.encode(), space.fingerprint.encode())
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def _unpacked(packed: bytes, most: int) -> list[int] | None:
    size = zstandard.frame_content_size(packed)
    if not 0 <= size <= most or size % _WIDTH:
        return None
    return array("I", zstandard.ZstdDecompressor().decompress(packed, max_output_size=most)).tolist()


def parse_keys(text: str, source: str) -> list[bytes]:
    """Keys in base64 (or hex), separated by commas or white space. Raises `SealKeyError`."""
    keys = [_key(word, source) for word in text.replace(",", " ").split()]
    if not keys:
        raise SealKeyError(f"{source}: there is no key in it")
    return keys


def load_keys(folder: Path) -> list[bytes]:
    """The keys in the file `seal.key` of `folder`, which is made if it is not there, readable by its owner alone.

    Raises `SealKeyError` for a file with something else in it, OSError for one that can't be read or made.
    """
    file = folder / FILE
    folder.mkdir(parents=True, exist_ok=True)
    fresh = base64.urlsafe_b64encode(secrets.token_bytes(_KEY)).decode() + "\n"
    draft = folder / f"{FILE}.{secrets.token_hex(4)}"
    if not file.exists():
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as out:
            out.write(fresh)
        try:
            os.link(draft, file)  # of two servers that start at once, one makes the key for both
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return parse_keys(file.read_text(), str(file))


def _key(word: str, source: str) -> bytes:
    try:
        if len(word) == 2 * _KEY:
            return bytes.fromhex(word)
        key = base64.b64decode(word.rstrip("=") + "=" * (-len(word.rstrip("=")) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as fault:
        raise SealKeyError(f"{source}: a key must be {_KEY} bytes in base64 or hex: {fault}") from fault
    if len(key) != _KEY:
        raise SealKeyError(f"{source}: a key must be {_KEY} bytes in base64 or hex, one has {len(key)}")
    return key


def _id(key: bytes) -> bytes:
    return blake2b(key, digest_size=_ID, person=b"memra-seal-key").digest()
