"""Who may speak to this server: the address it binds, the Host check of an open one, keys on all routes.

Generating routes check their key in `admission`, in its place in the order; probes need none.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping

from memra_mlx.admission import keyring
from memra_mlx.admission.keyring import Ring
from memra_mlx.config import Config, ConfigError
from memra_mlx.errors import ApiError

GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
_OPEN_PATHS = ("/", "/livez", "/health", "/readyz", "/metrics")


def check_bind(config: Config, ring: Ring) -> None:
    """Raise `ConfigError` for an address that others can reach and nobody has asked to leave open."""
    if not (ring.closed or is_loopback(config.host) or config.insecure_open):
        raise ConfigError(
            f"host: {config.host} can be reached from other machines, and there are no keys; make one with `memra-mlx "
            "keys gen TENANT`, set MEMRA_API_KEY, or say --insecure-open to serve everybody"
        )


def check(config: Config, ring: Ring, path: str, headers: Mapping[str, str]) -> None:
    """Raise 403 for a foreign Host on an open loopback server (DNS rebinding), 401 or 403 for a key that won't do."""
    if not ring.closed and is_loopback(config.host) and not _known_host(config, headers.get("host", "")):
        raise ApiError(
            "permission",
            "host: this open server answers loopback names only; add the name with allow_hosts, or set an api_key",
            param="host",
            code="host_forbidden",
        )
    if path not in _OPEN_PATHS and path not in GENERATING:
        ring.caller(headers)


def metrics_of(config: Config, ring: Ring, headers: Mapping[str, str]) -> str | None:
    """The tenant whose counts a request may see; None is everybody's. Raises 401 or 403."""
    token = config.metrics_token.encode()
    sent = [hmac.compare_digest(value.encode(), token) for value in keyring.credentials(headers)]
    if not ring.closed or (token and any(sent)):
        return None
    return ring.caller(headers).tenant


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
