"""A request of the shape and size that Claude Code sends, of words that no other run has used."""

from __future__ import annotations

import json
from typing import Any

from memra_mlx.bench.text import words

_TOOLS = 26
_SYSTEM = (12, 900, 1100)  # words in each block
_DESCRIPTION = 160
_PROPERTY = 14
_RESULT = 160
_HEAD = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 32000,
    "metadata": {"user_id": "bench"},
    "thinking": {"type": "disabled"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "stream": True,
}


def body(size: int, seed: str) -> dict[str, Any]:
    """A Messages request of about `size` bytes: system, tools, and as many tool turns as fit."""
    system = [{"type": "text", "text": words(count, f"{seed}-system-{i}")} for i, count in enumerate(_SYSTEM)]
    tools = [_tool(number, seed) for number in range(_TOOLS)]
    messages = [{"role": "user", "content": [{"type": "text", "text": words(60, f"{seed}-task")}]}]
    request = {**_HEAD, "system": system, "tools": tools, "messages": messages}
    while len(json.dumps(request)) < size:
        number = len(messages)
        messages.append(_called(f"toolu_{number}", number))
        messages.append(_result(f"toolu_{number}", f"{seed}-{number}"))
    return request


def answered(request: dict[str, Any], content: list[dict[str, Any]], seed: str) -> dict[str, Any]:
    """The next request: what was answered, and what its tools brought back."""
    calls = [block["id"] for block in content if block["type"] == "tool_use"]
    text = {"role": "user", "content": [{"type": "text", "text": words(_RESULT, seed)}]}
    said = {"role": "assistant", "content": content}
    return {**request, "messages": [*request["messages"], said, _result(calls[0], seed) if calls else text]}


def _tool(number: int, seed: str) -> dict[str, Any]:
    names = ("file_path", "command", "limit")
    properties = {
        name: {"type": "integer" if name == "limit" else "string", "description": words(_PROPERTY, f"{seed}-{number}")}
        for name in names
    }
    schema = {"type": "object", "properties": properties, "required": [names[0]], "additionalProperties": False}
    description = words(_DESCRIPTION, f"{seed}-tool-{number}")
    return {"name": f"Tool{number}", "description": description, "input_schema": schema}


def _called(call_id: str, number: int) -> dict[str, Any]:
    call = {"type": "tool_use", "id": call_id, "name": "Tool1", "input": {"file_path": f"src/part{number}.py"}}
    return {"role": "assistant", "content": [call]}


def _result(call_id: str, seed: str) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": words(_RESULT, seed)}
    return {"role": "user", "content": [block]}
