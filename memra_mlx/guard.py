"""Who may speak to this server: the Host check of an open loopback server, and the single key."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping

from memra_mlx.config import Config
from memra_mlx.errors import ApiError

_OPEN_PATHS = ("/", "/livez", "/health", "/readyz")


def check(config: Config, path: str, headers: Mapping[str, str]) -> None:
    """Raise 403 for a foreign Host on an open loopback server (DNS rebinding), 401 for a missing or wrong key."""
    if not config.api_key and is_loopback(config.host) and not _known_host(config, headers.get("host", "")):
        raise ApiError(
            "permission",
            "host: this open server answers loopback names only; add the name with allow_hosts, or set an api_key",
            param="host",
            code="host_forbidden",
        )
    if config.api_key and path not in _OPEN_PATHS and not _authorised(config.api_key, headers):
        raise ApiError("auth", "missing or unknown API key; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'")


def is_loopback(host: str) -> bool:
    """Whether `host` (a name or an address) is this machine alone."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _known_host(config: Config, header: str) -> bool:
    name = header.rpartition(":")[0] if not header.endswith("]") and ":" in header else header
    return not header or is_loopback(name) or name.lower() in {host.lower() for host in config.allow_hosts}


def _authorised(key: str, headers: Mapping[str, str]) -> bool:
    bearer = headers.get("authorization", "")
    scheme, _, token = bearer.partition(" ")
    sent = [token.strip()] if scheme.lower() == "bearer" else []
    sent.append(headers.get("x-api-key", ""))
    matches = [hmac.compare_digest(value.encode(), key.encode()) for value in sent]  # all, whichever is right
    return any(matches)
