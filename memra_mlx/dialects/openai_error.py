"""Refusals and faults in the form of the OpenAI dialects."""

from __future__ import annotations

from typing import Any

from memra_mlx.errors import ApiError


def error(error: ApiError, request_id: str = "") -> dict[str, Any]:
    """The error body. The request id is in the headers alone."""
    return {
        "error": {"message": error.message, "type": error.rule.openai_type, "param": error.param, "code": error.code}
    }


def status(error: ApiError) -> int:
    """The HTTP status."""
    return error.rule.status
