"""`/v1/chat/completions`: the request. The answer is in `chat_frames`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memra_mlx.dialects import chat_wire as wire
from memra_mlx.dialects.chat_frames import Frames, body
from memra_mlx.dialects.chat_history import History
from memra_mlx.dialects.content import Notes, affinity, check_choice, described, unique
from memra_mlx.dialects.fields import brief, child, item, stops, top_k, unknown, validate
from memra_mlx.dialects.openai_error import error, status
from memra_mlx.errors import invalid
from memra_mlx.prompt.effort import level
from memra_mlx.request import Conversation, Format, Request, Sampling, Thinking, Tool, ToolChoice

__all__ = ["Frames", "body", "error", "parse", "status"]

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_REFUSED = {
    "audio": "this server makes no sound; leave it out",
    "web_search_options": "this server searches nothing; offer a tool that does",
    "functions": "the older form is not supported; use tools",
    "function_call": "the older form is not supported; use tool_choice",
}


def parse(body: dict[str, Any], headers: Mapping[str, str]) -> Request:
    """A request to generate. Raises a 400 that names the field."""
    sent = validate(wire.Body, body)
    _refuse(sent)
    history = History()
    for index, turn in enumerate(sent.messages):
        history.turn(turn, item("messages", index))
    notes = history.notes
    if sent.store:
        notes.add("store", "store: answers are not stored here")
    tools = unique((_tool(tool, item("tools", i)) for i, tool in enumerate(sent.tools or ())), "tools")
    return Request(
        dialect="chat",
        model=sent.model,
        input=Conversation(tuple(history.messages)),
        tools=tools,
        tool_choice=check_choice(_choice(sent), tools, "tool_choice"),
        sampling=_sampling(sent),
        thinking=_thinking(sent, notes),
        format=_format(sent.response_format),
        max_tokens=sent.max_completion_tokens or sent.max_tokens,
        stop=stops(sent.stop, "stop"),
        stop_token_ids=tuple(sent.stop_token_ids or ()),
        n=sent.n or 1,
        stream=bool(sent.stream),
        stream_usage=bool(sent.stream_options and sent.stream_options.include_usage),
        timeout_ms=sent.timeout_ms,
        ctx_size=sent.ctx_size,
        cache_salt=sent.cache_salt or "",
        affinity=affinity(headers, sent.prompt_cache_key, sent.user),
        warnings=notes.texts,
    )


def _refuse(sent: wire.Body) -> None:
    for name, why in _REFUSED.items():
        if getattr(sent, name) is not None:
            raise invalid(name, why)
    for index, kind in enumerate(sent.modalities or ()):
        if kind != "text":
            raise unknown(item("modalities", index), kind, "text")


def _tool(sent: dict[str, Any], at: str) -> Tool:
    match sent.get("type", "function"):
        case "function":
            tool = validate(wire.FunctionTool, sent, at).function
            parameters = tool.parameters or _NO_PARAMETERS
            return Tool(tool.name, tool.description or "", parameters, strict=bool(tool.strict))
        case "custom":
            custom = validate(wire.CustomTool, sent, at).custom
            grammar = _grammar(custom.format, f"{at}.custom.format")
            parameters = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
            told = described(custom.description or "", grammar)
            return Tool(custom.name, told, parameters, custom=True, grammar=grammar)
        case kind:
            raise unknown(child(at, "type"), kind, "function or custom")


def _grammar(sent: wire.CustomFormat | None, at: str) -> tuple[str, str] | None:
    if sent is None or sent.type == "text":
        return None
    if sent.grammar is None:
        raise invalid(f"{at}.grammar", "this field is required", "missing_argument")
    return sent.grammar.syntax, sent.grammar.definition


def _choice(sent: wire.Body) -> ToolChoice:
    parallel = sent.parallel_tool_calls is not False
    choice = sent.tool_choice
    match choice:
        case None:
            return ToolChoice(parallel=parallel)
        case str():
            return ToolChoice(choice, parallel=parallel)
        case wire.Choice(type="allowed_tools", allowed_tools=wire.AllowedTools(mode=mode, tools=tools)):
            at = "tool_choice.allowed_tools.tools"
            names = tuple(_chosen(tool, item(at, index)) for index, tool in enumerate(tools))
            if not names:
                raise invalid(at, "name at least one tool, or use none")
            return ToolChoice(mode, names, parallel)
        case wire.Choice():
            named = getattr(choice, choice.type)
            if named is None:
                raise invalid(f"tool_choice.{choice.type}", "this field is required", "missing_argument")
            return ToolChoice("required", (named.name,), parallel)


def _chosen(sent: dict[str, Any], at: str) -> str:
    kind = sent.get("type", "function")
    if kind not in ("function", "custom"):
        raise unknown(child(at, "type"), kind, "function or custom")
    return validate(wire.Named, sent.get(kind), child(at, kind)).name


def _sampling(sent: wire.Body) -> Sampling:
    return Sampling(
        temperature=sent.temperature,
        top_p=sent.top_p,
        top_k=top_k(sent.top_k),
        min_p=sent.min_p,
        seed=sent.seed,
        frequency_penalty=sent.frequency_penalty,
        presence_penalty=sent.presence_penalty,
        repetition_penalty=sent.repetition_penalty,
        logit_bias=_logit_bias(sent.logit_bias or {}),
        logprobs=_logprobs(sent),
    )


def _logit_bias(sent: dict[str, float]) -> tuple[tuple[int, float], ...]:
    for key in sent:
        if not (key.isascii() and key.isdigit() and len(key) <= 9):
            raise invalid("logit_bias", f"keys are token ids, not {brief(key)}")
    return tuple((int(key), value) for key, value in sent.items())


def _logprobs(sent: wire.Body) -> int | None:
    if sent.logprobs:
        return sent.top_logprobs or 0
    if sent.top_logprobs:
        raise invalid("top_logprobs", "needs logprobs: true")
    return None


def _format(sent: wire.ResponseFormat | None) -> Format | None:
    if sent is None or sent.type == "text":
        return None
    if sent.type == "json_object":
        return Format()
    schema = sent.json_schema
    if schema is None:
        raise invalid("response_format.json_schema", "this field is required", "missing_argument")
    return Format(schema.schema_, schema.name, bool(schema.strict))


def _thinking(sent: wire.Body, notes: Notes) -> Thinking:
    """An explicit switch rules; effort alone leaves it to the effort table."""
    reasoning = sent.reasoning or {}
    for name in reasoning:
        if name not in ("effort", "enabled", "summary"):
            raise invalid(f"reasoning.{name}", "only effort, enabled and summary are supported here")
    if reasoning.get("summary") not in (None, "auto"):
        raise unknown("reasoning.summary", reasoning["summary"], "auto: reasoning is returned as it is")
    kwargs = validate(wire.TemplateArgs, sent.chat_template_kwargs or {}, "chat_template_kwargs")
    for name in sent.chat_template_kwargs or ():
        if name not in wire.TemplateArgs.model_fields:
            notes.add(f"kwarg {name}", f"chat_template_kwargs.{name}: not passed to the template")
    enabled = reasoning.get("enabled")
    if not isinstance(enabled, bool | None):
        raise unknown("reasoning.enabled", enabled, "true or false")
    switches = (enabled, kwargs.enable_thinking, kwargs.thinking)
    efforts = {
        "reasoning_effort": sent.reasoning_effort,
        "reasoning.effort": reasoning.get("effort"),
        "chat_template_kwargs.reasoning_effort": kwargs.reasoning_effort,
    }
    levels = [level(value, param) for param, value in efforts.items() if value is not None]
    return Thinking(next((s for s in switches if s is not None), None), levels[0] if levels else None)
