"""Fresh ids in the form of each dialect."""

from __future__ import annotations

import re
import secrets

from memra_mlx.request import Dialect

_CALL = re.compile(r"(?:call|toolu)_m([rp])[0-9a-f]{22}")
_REQUEST = {"chat": "chatcmpl-", "completions": "cmpl-", "messages": "msg_", "responses": "resp_"}


def response_id(dialect: Dialect) -> str:
    """The id of an answer."""
    return _REQUEST[dialect] + secrets.token_hex(12)


def call_id(dialect: Dialect, *, reasoned: bool = False) -> str:
    """The id of a tool call. It tells `reasoned` whether the turn that makes it has reasoned."""
    return f"{'toolu' if dialect == 'messages' else 'call'}_m{'r' if reasoned else 'p'}{secrets.token_hex(11)}"


def reasoned(call_id: str) -> bool | None:
    """Whether the turn that made this call had reasoned; None for an id that was not made here."""
    match = _CALL.fullmatch(call_id)
    return match[1] == "r" if match else None


def request_id() -> str:
    """The id of an HTTP request, for headers and logs."""
    return "req_" + secrets.token_hex(12)


def receipt_id() -> str:
    """The id of a row of the ledger."""
    return "rcp_" + secrets.token_hex(12)
