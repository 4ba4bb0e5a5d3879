"""Fresh ids in the form of each dialect."""

from __future__ import annotations

import secrets

from memra_mlx.request import Dialect

_REQUEST = {"chat": "chatcmpl-", "completions": "cmpl-", "messages": "msg_", "responses": "resp_"}


def response_id(dialect: Dialect) -> str:
    """The id of an answer."""
    return _REQUEST[dialect] + secrets.token_hex(12)


def call_id(dialect: Dialect) -> str:
    """The id of a tool call."""
    return ("toolu_" if dialect == "messages" else "call_") + secrets.token_hex(12)


def request_id() -> str:
    """The id of an HTTP request, for headers and logs."""
    return "req_" + secrets.token_hex(12)


def receipt_id() -> str:
    """The id of a row of the ledger."""
    return "rcp_" + secrets.token_hex(12)
