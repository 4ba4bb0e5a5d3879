"""Cross-origin requests from browsers: off unless origins are configured; then what an answer to them carries.

`*` among the origins allows every page to use the server with the keys that it knows; no cookies are ever involved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_SHOWN = (
    "request-id", "retry-after", "retry-after-ms", "x-memra-warning", "x-ratelimit-limit", "x-ratelimit-remaining",
    "x-ratelimit-reset", "x-request-id", "x-should-retry",
)  # fmt: skip
_PREFLIGHT_S = 600


def allowed(origins: Sequence[str], sent: Mapping[str, str]) -> dict[str, str]:
    """The headers of an answer to a request with the headers `sent` (lower-case names); none for a foreign page."""
    origin = sent.get("origin", "")
    if not origin or not ("*" in origins or origin in origins):
        return {}
    return {
        "access-control-allow-origin": origin,
        "access-control-expose-headers": ", ".join(_SHOWN),
        "vary": "origin",
    }


def is_preflight(method: str, sent: Mapping[str, str]) -> bool:
    """Whether a browser asks if it may send the real request. It never shows a key."""
    return method == "OPTIONS" and "access-control-request-method" in sent and "origin" in sent


def preflight(sent: Mapping[str, str]) -> dict[str, str]:
    """What a preflight is told, beside `allowed`."""
    told = {"access-control-allow-methods": "GET, HEAD, POST", "access-control-max-age": str(_PREFLIGHT_S)}
    if names := sent.get("access-control-request-headers"):
        told["access-control-allow-headers"] = names
    if sent.get("access-control-request-private-network") == "true":
        told["access-control-allow-private-network"] = "true"
    return told
