"""`/v1/messages` and `/v1/messages/count_tokens`: the request. The answer is in `messages_frames`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memra_mlx.dialects import messages_wire as wire
from memra_mlx.dialects.content import affinity, check_choice, unique
from memra_mlx.dialects.fields import brief, child, item, stops, top_k, validate
from memra_mlx.dialects.messages_frames import Frames, body, error, status
from memra_mlx.dialects.messages_history import History
from memra_mlx.errors import invalid
from memra_mlx.prompt.effort import level
from memra_mlx.request import Conversation, Format, Request, Sampling, Thinking, Tool, ToolChoice

__all__ = ["Frames", "body", "error", "parse", "parse_count", "status"]

MIN_BUDGET = 1024

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_MODES = {"auto": "auto", "none": "none", "any": "required", "tool": "required"}


def parse(body: dict[str, Any], headers: Mapping[str, str]) -> Request:
    """A request to generate. Raises a 400 that names the field."""
    sent = validate(wire.Body, body)
    return replace(
        _request(sent, headers, sent.max_tokens),
        max_tokens=sent.max_tokens,
        stop=stops(sent.stop_sequences, "stop_sequences"),
        sampling=Sampling(temperature=sent.temperature, top_p=sent.top_p, top_k=top_k(sent.top_k)),
        stream=bool(sent.stream),
        timeout_ms=sent.timeout_ms,
        ctx_size=sent.ctx_size,
    )


def parse_count(body: dict[str, Any], headers: Mapping[str, str]) -> Request:
    """A request to count the prompt's tokens: the same fields, but for those of generation."""
    return _request(validate(wire.Prompt, body), headers, None)


def _request(sent: wire.Prompt, headers: Mapping[str, str], max_tokens: int | None) -> Request:
    for name in ("mcp_servers", "container"):
        if getattr(sent, name):
            raise invalid(name, "this server runs no MCP servers and no containers; offer tools that the client runs")
    history = History()
    history.system(sent.system or [], "system")
    for index, turn in enumerate(sent.messages):
        history.turn(turn, item("messages", index))
    tools = unique((_tool(tool, item("tools", i)) for i, tool in enumerate(sent.tools or ())), "tools")
    effort, fmt = _output_config(sent)
    return Request(
        dialect="messages",
        model=sent.model,
        input=Conversation(tuple(history.messages)),
        tools=tools,
        tool_choice=check_choice(_choice(sent.tool_choice), tools, "tool_choice"),
        thinking=_thinking(sent.thinking, effort, max_tokens),
        format=fmt,
        cache_salt=sent.cache_salt or "",
        affinity=affinity(headers, sent.metadata.user_id if sent.metadata else None),
        warnings=history.notes.texts,
    )


def _tool(sent: dict[str, Any], at: str) -> Tool:
    kind = sent.get("type")
    if kind not in (None, "custom"):
        raise invalid(
            child(at, "type"),
            f"{brief(kind)} is a tool that the API's own servers define or run; only tools with an input_schema, "
            "which the client runs, can be offered here",
        )
    tool = validate(wire.Tool, sent, at)
    return Tool(tool.name, tool.description or "", tool.input_schema or _NO_PARAMETERS, strict=bool(tool.strict))


def _choice(sent: wire.ToolChoice | None) -> ToolChoice:
    if sent is None:
        return ToolChoice()
    if sent.type == "tool" and sent.name is None:
        raise invalid("tool_choice.name", "this field is required for type tool", "missing_argument")
    names = (sent.name,) if sent.type == "tool" and sent.name is not None else ()
    return ToolChoice(_MODES[sent.type], names, not sent.disable_parallel_tool_use)  # type: ignore[arg-type]


def _output_config(sent: wire.Prompt) -> tuple[str | None, Format | None]:
    """Effort level and output format, from `output_config` and the older `output_format`."""
    config = sent.output_config or {}
    for name, value in config.items():
        if name not in ("effort", "format") and value is not None:
            raise invalid(f"output_config.{name}", "only effort and format are supported here")
    value = config.get("effort")
    effort = None if value is None else level(value, "output_config.effort")
    if config.get("format") is not None:
        at = "output_config.format"
        return effort, _format(validate(wire.Schema, config["format"], at), at)
    return effort, _format(sent.output_format, "output_format") if sent.output_format else None


def _format(sent: wire.Schema, at: str) -> Format:
    if sent.type == "json_object":
        return Format()
    if sent.schema_ is None:
        raise invalid(child(at, "schema"), "this field is required", "missing_argument")
    return Format(sent.schema_, strict=True)


def _thinking(sent: wire.Thinking | None, effort: str | None, max_tokens: int | None) -> Thinking:
    """`thinking.type` rules the switch; effort alone leaves it to the effort table."""
    if sent is None:
        return Thinking(None, effort)
    if sent.type == "disabled":
        return Thinking(False, effort)
    budget = sent.budget_tokens
    if budget is not None and (budget < MIN_BUDGET or (max_tokens is not None and budget >= max_tokens)):
        raise invalid("thinking.budget_tokens", f"must be at least {MIN_BUDGET} and below max_tokens, not {budget}")
    if sent.type == "enabled":
        return Thinking(True, effort, budget)
    return Thinking(None, None if effort in ("none", "minimal") else effort, budget)
