"""What a model is, in few characters: weights, tokenizer and template. Nothing of one is reused with another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

_SAMPLES = 16
_SAMPLE = 1 << 16
_WHOLE = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")
_WEIGHTS = "*.safetensors"


def of_weights(folder: Path) -> str:
    """The weights of a model and how they are run. Hashing gigabytes would take minutes, so of each file its length and
    some pieces count, the header among them."""
    parts = [_read(folder / "config.json")]
    for file in sorted(folder.glob(_WEIGHTS)):
        size = file.stat().st_size
        parts.append(f"{file.name} {size}".encode())
        parts.extend(_pieces(file, size))
    return _digest(parts)


def of_model(folder: Path, extra: Sequence[bytes] = (), template: str | None = None) -> str:
    """The same with tokenizer and template; `extra` are tokens beside the tokenizer's, `template` replaces its own."""
    files = [_read(folder / name) for name in _WHOLE]
    return _digest([of_weights(folder).encode(), *files, (template or "").encode(), *extra])


def _pieces(file: Path, size: int) -> Iterator[bytes]:
    with file.open("rb") as data:
        for n in range(_SAMPLES):
            data.seek(max(0, size - _SAMPLE) * n // (_SAMPLES - 1))
            yield data.read(_SAMPLE)


def _read(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _digest(parts: Sequence[bytes]) -> str:
    digest = blake2b(digest_size=16, person=b"memra-model")
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
