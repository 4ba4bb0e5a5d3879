"""Keys and tenants: who sent a request, and on what terms.

    [tenants.acme]            # optional: money and consent belong to the tenant
    budget = 25.0             # prepaid, in units of your currency; without it nothing is bounded
    prices = { prompt = 0.5, cached = 0.05, completion = 2.0 }    # per million tokens
    capture = false
    [[keys]]
    sha256 = "…"              # of the key; the key itself is nowhere
    tenant = "acme"
    class = "interactive"     # or "batch"
    enabled = true
    concurrency = 4           # narrows the server's `slots`; all keys of a tenant share one gauge

Pure: text in, a `Ring` out; files and reloading are in `keyfile`. Money is whole micro-units (millionths) of a unit.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from memra_mlx.errors import ApiError

LaneClass = Literal["interactive", "batch"]
DEFAULT_TENANT = "default"
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TENANT_KEYS = {"budget", "prices", "capture"}
_PRICE_KEYS = {"prompt", "cached", "completion"}
_KEY_KEYS = {"sha256", "tenant", "class", "enabled", "concurrency"}
_UNKNOWN = "missing or unknown API key; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"


class KeyringError(ValueError):
    """A keyring that cannot be used; the message names the place."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Micro-units per million tokens. Cached prompt tokens have a price of their own."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def cost(self, prompt: int, cached: int, completion: int) -> int:
        """Micro-units for these tokens, rounded up once; `prompt` includes `cached`."""
        exact = (prompt - cached) * self.prompt + cached * self.cached + completion * self.completion
        return -(-exact // 1_000_000)


FREE = Prices()


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for a tenant. `budget` in micro-units, None where it is not bounded."""

    tenant: str
    budget: int | None = None
    prices: Prices = FREE
    capture: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """One key, known by its SHA-256 (hex). `concurrency` is the most requests at once, None for the server's own."""

    digest: str
    tenant: str
    lane_class: LaneClass = "interactive"
    enabled: bool = True
    concurrency: int | None = None

    @property
    def id(self) -> str:
        """How the key is called in lists and ledgers."""
        return self.digest[:12]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. `key` is None on an open server."""

    terms: Terms
    key: Key | None = None

    @property
    def tenant(self) -> str:
        """The tenant's name."""
        return self.terms.tenant

    def namespace(self, salt: str) -> str:
        """The cache namespace: no salt can name another tenant."""
        return salt if self.key is None else f"t:{self.tenant}\x1f{salt}"


@dataclass(frozen=True, slots=True)
class Ring:
    """All keys and terms. `closed`: requests need a key, also where no key is left."""

    keys: tuple[Key, ...] = ()
    tenants: Mapping[str, Terms] = field(default_factory=dict)
    closed: bool = False

    def terms(self, tenant: str) -> Terms:
        """The terms of `tenant`, plain ones where the keyring has none."""
        return self.tenants.get(tenant) or Terms(tenant)

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who sends `headers` (lower-case names). Any enabled key wins. Raises 401, or 403 for a disabled key."""
        if not self.closed:
            return Caller(self.terms(DEFAULT_TENANT))
        known = [key for sent in credentials(headers) for key in self._matches(sent)]
        if usable := next((key for key in known if key.enabled), None):
            return Caller(self.terms(usable.tenant), usable)
        if known:
            raise ApiError("permission", "this API key is disabled; ask for another one", code="key_disabled")
        raise ApiError("auth", _UNKNOWN)

    def _matches(self, sent: str) -> list[Key]:
        digest = digest_of(sent).encode()
        return [key for key in self.keys if hmac.compare_digest(digest, key.digest.encode())]  # always all of them


def credentials(headers: Mapping[str, str]) -> list[str]:
    """The keys that a request carries; clients may send two, of which one is right."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    sent = [token.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "").strip()]
    return [value for value in sent if value]


def digest_of(key: str) -> str:
    """SHA-256, as hex."""
    return hashlib.sha256(key.encode()).hexdigest()


def parse(text: str) -> Ring:
    """Read a keyring file. Raises `KeyringError`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise KeyringError(str(fault)) from fault
    _only(data, {"tenants", "keys"}, "the keyring")
    tenants = {name: _terms(name, row) for name, row in _table(data.get("tenants", {}), "tenants").items()}
    rows = data.get("keys", [])
    if not isinstance(rows, list):
        raise KeyringError("keys: must be a list of tables, [[keys]]")
    keys = tuple(_key(f"keys[{i}]", row) for i, row in enumerate(rows))
    return Ring(keys, tenants, closed=bool(keys))


def parse_inline(text: str) -> tuple[Key, ...]:
    """Read `TENANT=KEY,TENANT/batch=KEY,mk-TENANT-…`; a KEY may be `sha256:HEX`. Raises `KeyringError`."""
    return tuple(_inline(part.strip(), i) for i, part in enumerate(text.split(",")) if part.strip())


def with_keys(ring: Ring, more: Iterable[Key]) -> Ring:
    """`ring` and the keys of the environment."""
    keys = (*ring.keys, *more)
    return Ring(keys, ring.tenants, closed=ring.closed or bool(keys))


def _inline(part: str, index: int) -> Key:
    where = f"keys[{index}]"
    owner, equals, value = part.partition("=")
    if not equals:
        match = re.fullmatch(r"mk-(.+)-[0-9a-f]{48}", part)
        if not match:
            raise KeyringError(f"{where}: must be TENANT=KEY, TENANT=sha256:HEX, or a key made by `memra-mlx keys gen`")
        owner, value = match[1], part
    tenant, _, lane_class = owner.partition("/")
    digest = value.removeprefix("sha256:") if value.startswith("sha256:") else digest_of(value)
    return _key(where, {"sha256": digest, "tenant": tenant, "class": lane_class or "interactive"})


def _key(where: str, row: Any) -> Key:
    table = _table(row, where)
    _only(table, _KEY_KEYS, where)
    digest, lane_class = table.get("sha256"), table.get("class", "interactive")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise KeyringError(f"{where}.sha256: must be 64 lower-case hex digits")
    if lane_class not in ("interactive", "batch"):
        raise KeyringError(f"{where}.class: must be interactive or batch")
    concurrency = table.get("concurrency")
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise KeyringError(f"{where}.concurrency: must be a whole number from 1")
    enabled = _bool(table, "enabled", True, where)
    return Key(digest, tenant_name(table.get("tenant"), f"{where}.tenant"), lane_class, enabled, concurrency)


def _terms(name: str, row: Any) -> Terms:
    where = f"tenants.{name}"
    table = _table(row, where)
    _only(table, _TENANT_KEYS, where)
    prices = _table(table.get("prices", {}), f"{where}.prices")
    _only(prices, _PRICE_KEYS, f"{where}.prices")
    amounts = {key: _micros(value, f"{where}.prices.{key}") for key, value in prices.items()}
    amounts.setdefault("cached", amounts.get("prompt", 0))
    budget = _micros(table["budget"], f"{where}.budget") if "budget" in table else None
    return Terms(tenant_name(name, where), budget, Prices(**amounts), _bool(table, "capture", False, where))


def tenant_name(name: Any, where: str) -> str:
    """`name`, if it can be a tenant's. Raises `KeyringError`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise KeyringError(f"{where}: a tenant's name is letters, digits, _ and -")
    return name


def _micros(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise KeyringError(f"{where}: must be an amount, not negative")
    return round(value * 1_000_000)


def _bool(table: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    value = table.get(key, default)
    if not isinstance(value, bool):
        raise KeyringError(f"{where}.{key}: must be true or false")
    return value


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise KeyringError(f"{where}: must be a table")
    return value


def _only(table: Mapping[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(set(table) - known):
        raise KeyringError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
