"""The keyring on disk: reading it again when it changes, and the edits of `memra-mlx keys`."""

from __future__ import annotations

import logging
import os
import re
import secrets
from pathlib import Path

from memra_mlx.admission import keyring
from memra_mlx.admission.keyring import DEFAULT_TENANT, Key, KeyringError, LaneClass, Ring
from memra_mlx.config import Config, ConfigError

log = logging.getLogger("memra.keys")

Stamp = tuple[int, int, int]


class Keyring:
    """The ring in force. A rewrite of the file holds from the next request on; a broken one is logged and left out.

    A server that once asked for keys does so until it ends, also if the file is emptied or removed.
    """

    def __init__(self, file: Path, fixed: tuple[Key, ...] = ()):
        self._file = file
        self._fixed = fixed
        self._stamp = _stamp(file)
        self._ring = self._read() if self._stamp else keyring.with_keys(Ring(), fixed)

    @classmethod
    def of(cls, config: Config) -> Keyring:
        """The keyring of a configuration. Raises `ConfigError` where it cannot be used."""
        try:
            fixed = keyring.parse_inline(config.keys)
            if config.api_key:
                fixed += (Key(keyring.digest_of(config.api_key), DEFAULT_TENANT),)
            return cls(config.keyring_file, fixed)
        except (OSError, KeyringError, UnicodeDecodeError) as fault:
            raise ConfigError(f"keyring ({config.keyring_file}, MEMRA_KEYS): {fault}") from fault

    @property
    def ring(self) -> Ring:
        """The ring as the file has it now, or the last one that could be read."""
        stamp = _stamp(self._file)
        if stamp != self._stamp:
            self._stamp = stamp
            self._reload()
        return self._ring

    def _reload(self) -> None:
        try:
            ring = self._read()
        except (OSError, KeyringError, UnicodeDecodeError) as fault:
            log.error("%s cannot be used, the keys read before stay in force: %s", self._file, fault)
            return
        closed = ring.closed or self._ring.closed
        self._ring = Ring(ring.keys, ring.tenants, closed)
        log.info("%s was read again: %d keys", self._file, len(ring.keys))

    def _read(self) -> Ring:
        return keyring.with_keys(keyring.parse(self._file.read_text(encoding="utf-8")), self._fixed)


def _stamp(file: Path) -> Stamp | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return (state.st_mtime_ns, state.st_size, state.st_ino)


def generate(file: Path, tenant: str, lane_class: LaneClass, concurrency: int | None) -> str:
    """Add a key for `tenant` and return its plaintext, which is kept nowhere. Raises `KeyringError`."""
    keyring.tenant_name(tenant, "tenant")
    plain = f"mk-{tenant}-{secrets.token_hex(24)}"
    lines = ["[[keys]]", f'sha256 = "{keyring.digest_of(plain)}"', f'tenant = "{tenant}"', f'class = "{lane_class}"']
    lines += ["enabled = true"] + ([f"concurrency = {concurrency}"] if concurrency else [])
    text = _text(file)
    gap = "\n" if text else ""
    _replace(file, text + ("" if text.endswith("\n") or not text else "\n") + gap + "\n".join(lines) + "\n")
    return plain


def revoke(file: Path, key_id: str) -> Key:
    """Disable the one key whose id begins with `key_id`. Raises `KeyringError`."""
    text = _text(file)
    found = [key for key in keyring.parse(text).keys if key.digest.startswith(key_id.lower())]
    if len(found) != 1:
        raise KeyringError(f"{key_id}: {'no key' if not found else f'{len(found)} keys'} with that id; see `keys ls`")
    _replace(file, _disabled(text, found[0]))
    return found[0]


def listing(file: Path) -> Ring:
    """The keyring in `file`, empty if there is none. Raises `KeyringError`."""
    return keyring.parse(_text(file))


def _disabled(text: str, key: Key) -> str:
    """`text` with that key's `enabled` set to false; all else, comments too, stays as it is."""
    blocks = re.split(r"(?m)^(?=\s*\[)", text)
    out = [_disable_block(block) if f'"{key.digest}"' in block else block for block in blocks]
    return "".join(out)


def _disable_block(block: str) -> str:
    kept = [line for line in block.splitlines() if not re.match(r"\s*enabled\s*=", line)]
    at = next(i for i, line in enumerate(kept) if re.match(r"\s*sha256\s*=", line))
    return "\n".join([*kept[: at + 1], "enabled = false", *kept[at + 1 :]]) + "\n"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _replace(file: Path, text: str) -> None:
    """Write all or nothing, readable by the owner alone; only text that can be read back."""
    keyring.parse(text)
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
