"""Whatever JSON object comes, the answer is a request or a refusal that names a field."""

from __future__ import annotations

from typing import Any

import pytest
from anything import spoiled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memra_mlx.dialects import chat, messages
from memra_mlx.errors import ApiError
from memra_mlx.request import Request

SCHEMA = {"type": "object", "properties": {"t": {"type": "string"}}}
PNG = "aGk="
MESSAGES: dict[str, Any] = {
    "model": "m", "max_tokens": 2048, "system": [{"type": "text", "text": "S"}], "stream": True,
    "messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "a"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
            {"type": "document", "title": "T", "source": {"type": "text", "data": "D"}},
            {"type": "mid_conv_system", "content": "x"}]},
        {"role": "system", "content": "late"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "redacted_thinking", "data": "d"},
            {"type": "tool_use", "id": "t1", "name": "w", "input": {"t": "x"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "is_error": False, "content": [
                {"type": "text", "text": "r"}, {"type": "tool_reference", "tool_name": "w"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}]}]},
    ],
    "tools": [{"name": "w", "description": "d", "input_schema": SCHEMA, "strict": True}],
    "tool_choice": {"type": "tool", "name": "w", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}},
    "stop_sequences": ["a"], "temperature": 1, "top_p": 1, "top_k": 5, "metadata": {"user_id": "u"},
}  # fmt: skip
CHAT: dict[str, Any] = {
    "model": "m", "max_tokens": 5, "stop": ["a"], "n": 1, "temperature": 1, "seed": 5, "logit_bias": {"5": 1},
    "logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True},
    "messages": [
        {"role": "developer", "content": "S"},
        {"role": "user", "content": [
            {"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]},
        {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "w", "arguments": "{}"}},
            {"id": "d", "type": "custom", "custom": {"name": "p", "input": "x"}}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "r"}]},
    ],
    "tools": [
        {"type": "function", "function": {"name": "w", "description": "d", "parameters": SCHEMA, "strict": False}},
        {"type": "custom", "custom": {"name": "p", "format": {"type": "grammar", "grammar": {}}}}],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
        {"type": "function", "function": {"name": "w"}}]}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA, "strict": True}},
    "reasoning_effort": "low", "reasoning": {"effort": "low", "enabled": True, "summary": "auto"},
    "chat_template_kwargs": {"enable_thinking": True},
}  # fmt: skip


def refusal(parse: Any, sent: dict[str, Any]) -> ApiError | None:
    """The refusal of `sent`, if it is refused."""
    try:
        request = parse(sent, {})
    except ApiError as fault:
        return fault
    assert isinstance(request, Request)
    return None


@pytest.mark.parametrize(
    ("body", "parse"),
    [(MESSAGES, messages.parse), (MESSAGES, messages.parse_count), (CHAT, chat.parse)],
    ids=["messages", "count_tokens", "chat"],
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_one_or_two_fields_may_hold_anything(body: dict[str, Any], parse: Any, data: st.DataObject):
    fault = refusal(parse, data.draw(spoiled(body)))
    if fault is not None:
        assert (fault.kind, bool(fault.param)) == ("invalid", True)
        assert fault.message.startswith(fault.param or "")
