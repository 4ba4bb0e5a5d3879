"""Errors as values: raised as a kind with a message, turned into a status and a body at the edge.

    ApiError            kind, message, param (field path), code, retry_after_s
    KINDS               kind -> status, type words per family, default code, whether a retry can help

Statuses follow the retry habits of the clients: only 400 is final in all of them (docs/api.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ErrorKind = Literal[
    "invalid", "context", "model", "auth", "permission", "quota", "path", "method", "timeout", "too_large",
    "media_type", "rate", "engine", "unavailable", "draining",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """How a kind appears on the wire. `final`: the same request cannot succeed later (`x-should-retry: false`).

    `retry_after_s` is what a client is told to wait where the error itself does not know better.
    """

    status: int
    openai_type: str
    anthropic_type: str
    code: str | None
    final: bool
    retry_after_s: int | None = None


KINDS: dict[ErrorKind, Rule] = {
    "invalid": Rule(400, "invalid_request_error", "invalid_request_error", None, True),
    "context": Rule(400, "invalid_request_error", "invalid_request_error", "context_length_exceeded", True),
    "model": Rule(400, "invalid_request_error", "invalid_request_error", "model_not_found", True),
    "auth": Rule(401, "authentication_error", "authentication_error", "invalid_api_key", True),
    "permission": Rule(403, "permission_error", "permission_error", None, True),
    "quota": Rule(429, "insufficient_quota", "permission_error", "insufficient_quota", True),
    "path": Rule(404, "not_found_error", "not_found_error", "not_found", True),
    "method": Rule(405, "not_found_error", "not_found_error", "method_not_allowed", True),
    "timeout": Rule(408, "timeout", "timeout_error", "deadline_exceeded", False),
    "too_large": Rule(413, "request_too_large", "request_too_large", "request_too_large", True),
    "media_type": Rule(415, "invalid_request_error", "invalid_request_error", "unsupported_encoding", True),
    "rate": Rule(429, "rate_limit_error", "rate_limit_error", "rate_limit_exceeded", False, 1),
    "engine": Rule(500, "server_error", "api_error", "engine_error", False),
    "unavailable": Rule(503, "server_error", "overloaded_error", "overloaded", False, 5),
    "draining": Rule(503, "server_error", "overloaded_error", "draining", False, 30),
}


class ApiError(Exception):
    """A request that cannot be served, and why.

    `message` is for the user and says the field, what was sent in brief, what is accepted, and the way out.
    `param` is the path of the field in the request as the client wrote it. `headers` go out with the answer.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.message = message
        self.param = param
        self.code = code or KINDS[kind].code
        self.retry_after_s = retry_after_s if retry_after_s is not None else KINDS[kind].retry_after_s
        self.headers: Mapping[str, str] = headers or {}

    @property
    def rule(self) -> Rule:
        """Its row of `KINDS`."""
        return KINDS[self.kind]

    def response_headers(self) -> dict[str, str]:
        """What a client needs beside the body: when to try again (1 to 60 whole seconds), or that it must not."""
        if self.rule.final:
            challenge = {"www-authenticate": "Bearer"} if self.kind == "auth" else {}
            return {"x-should-retry": "false", **challenge, **self.headers}
        if self.retry_after_s is None:
            return dict(self.headers)
        wait = max(1, min(60, self.retry_after_s))
        return {"retry-after": str(wait), "retry-after-ms": str(wait * 1000), **self.headers}


def invalid(param: str, message: str, code: str | None = None) -> ApiError:
    """A 400 that names the field `param`."""
    return ApiError("invalid", f"{param}: {message}", param=param, code=code)


def context_overflow(tokens: int, limit: int, param: str | None = None) -> ApiError:
    """The prompt does not fit. One wording carries the phrases that all known clients search for before they compact:
    Claude Code the first clause, pi and opencode the second and third."""
    return ApiError(
        "context",
        f"prompt is too long: {tokens} tokens > {limit} maximum. This model's maximum context length is {limit} "
        "tokens; reduce the length of the messages, or start the server with a larger context.",
        param=param,
    )
