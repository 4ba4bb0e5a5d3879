"""The table of errors: statuses, codes, and what clients are told about trying again."""

from __future__ import annotations

import pytest

from memra_mlx.dialects import chat, completions, messages, responses
from memra_mlx.errors import KINDS, ApiError, invalid

TABLE = {
    "invalid": (400, "invalid_request_error", None, True),
    "context": (400, "invalid_request_error", "context_length_exceeded", True),
    "model": (400, "invalid_request_error", "model_not_found", True),
    "auth": (401, "authentication_error", "invalid_api_key", True),
    "permission": (403, "permission_error", None, True),
    "quota": (429, "insufficient_quota", "insufficient_quota", True),
    "path": (404, "not_found_error", "not_found", True),
    "method": (405, "not_found_error", "method_not_allowed", True),
    "timeout": (408, "timeout", "deadline_exceeded", False),
    "too_large": (413, "request_too_large", "request_too_large", True),
    "rate": (429, "rate_limit_error", "rate_limit_exceeded", False),
    "engine": (500, "server_error", "engine_error", False),
    "unavailable": (503, "server_error", "overloaded", False),
    "draining": (503, "server_error", "draining", False),
}
WAITS = {"rate": "1", "unavailable": "5", "draining": "30"}
ANTHROPIC = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "not_found_error", 408: "timeout_error", 413: "request_too_large", 415: "invalid_request_error",
    429: "rate_limit_error", 500: "api_error", 503: "overloaded_error",
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLE)
def test_a_row(kind):
    rule = KINDS[kind]
    assert (rule.status, rule.openai_type, rule.code, rule.final) == TABLE[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_about_trying_again(kind):
    headers = ApiError(kind, "m").response_headers()
    assert ("x-should-retry" in headers) == KINDS[kind].final
    assert headers.get("retry-after") == WAITS.get(kind)
    assert headers.get("retry-after-ms") == (WAITS[kind] + "000" if kind in WAITS else None)
    assert ("www-authenticate" in headers) == (kind == "auth")


@pytest.mark.parametrize(("seconds", "told"), [(0, "1"), (1, "1"), (59, "59"), (3600, "60")])
def test_a_wait_is_one_to_sixty_whole_seconds(seconds, told):
    assert ApiError("rate", "m", retry_after_s=seconds).response_headers()["retry-after"] == told


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dialect", [chat, completions, responses])
def test_openai_bodies(kind, dialect):
    error = ApiError(kind, "a message", param="p")
    body = dialect.error(error, "req_1")["error"]
    assert body == {"message": "a message", "type": error.rule.openai_type, "param": "p", "code": error.code}
    assert dialect.status(error) == error.rule.status


@pytest.mark.parametrize("kind", KINDS)
def test_anthropic_bodies(kind):
    error = ApiError(kind, "a message")
    body = messages.error(error, "req_1")
    assert (body["type"], body["request_id"], body["error"]["message"]) == ("error", "req_1", "a message")
    assert body["error"]["type"] == ANTHROPIC[messages.status(error)]
    assert messages.status(error) == (403 if kind == "quota" else error.rule.status)


def test_a_field_is_named():
    error = invalid("tools[0].name", "must be text")
    assert (error.param, error.message) == ("tools[0].name", "tools[0].name: must be text")
