"""/v1/responses, the stateless part: the client sends the whole conversation each time, nothing is stored.

parse   request JSON -> Request       (items: responses_input, tools: responses_tools, JSON: responses_wire)
Frames  events -> SSE                 (responses_frames, responses_items)
body    folded answer -> JSON
error   a refusal or a fault -> JSON
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memra_mlx.dialects import responses_wire as wire
from memra_mlx.dialects.content import Notes, affinity
from memra_mlx.dialects.fields import child, item, stops, top_k, unknown, validate
from memra_mlx.dialects.openai_error import error, status
from memra_mlx.dialects.responses_frames import Frames, body
from memra_mlx.dialects.responses_input import conversation
from memra_mlx.dialects.responses_tools import Offer
from memra_mlx.errors import invalid
from memra_mlx.prompt.effort import level
from memra_mlx.request import Format, Request, Sampling, Thinking

__all__ = ["Frames", "body", "error", "parse", "status"]

_STATEFUL = {
    "previous_response_id": "responses are not stored here; replay the full input instead",
    "conversation": "conversations are not stored here; replay the full input instead",
    "store": "responses are not stored here; send false or leave it out",
    "background": "responses run while the client waits; send false or leave it out",
    "prompt": "prompt templates are not stored here; send instructions and input",
}
_INCLUDE_REASONING = "reasoning.encrypted_content"
_INCLUDE_LOGPROBS = "message.output_text.logprobs"


def parse(body: dict[str, Any], headers: Mapping[str, str]) -> Request:
    """A request's JSON as a `Request`. Raises a 400 that names the field which is wrong or can't be honoured."""
    sent = validate(wire.Body, body)
    _refuse_state(sent)
    notes = Notes()
    offer = Offer(sent.tools or [], notes)
    included = _included(sent, notes)
    return Request(
        dialect="responses",
        model=sent.model,
        input=conversation(sent.input, sent.instructions, offer, notes),
        tools=offer.tools,
        tool_choice=offer.choice(sent.tool_choice, sent.parallel_tool_calls is not False),
        sampling=_sampling(sent, _INCLUDE_LOGPROBS in included),
        thinking=_thinking(sent.reasoning),
        format=_format(sent),
        max_tokens=sent.max_output_tokens,
        stop=stops(sent.stop, "stop"),
        stream=bool(sent.stream),
        sealed_reasoning=_INCLUDE_REASONING in included,
        timeout_ms=sent.timeout_ms,
        ctx_size=sent.ctx_size,
        cache_salt=sent.cache_salt or "",
        affinity=affinity(headers, sent.prompt_cache_key, sent.user, sent.safety_identifier),
        echo_fields=_echoed(sent, body),
        warnings=notes.texts,
    )


def _refuse_state(sent: wire.Body) -> None:
    for name, way_out in _STATEFUL.items():
        if getattr(sent, name):
            raise invalid(name, f"is not supported: {way_out}", "invalid_argument")
    if sent.truncation == "auto":
        raise invalid("truncation", 'the context is never trimmed here; send "disabled" or leave it out')


def _included(sent: wire.Body, notes: Notes) -> list[str]:
    included = sent.include or []
    for index, name in enumerate(included):
        if name not in (_INCLUDE_REASONING, _INCLUDE_LOGPROBS):
            notes.add(f"include {name}", f"{item('include', index)}: there is nothing of this kind to include")
    return included


def _sampling(sent: wire.Body, with_logprobs: bool) -> Sampling:
    return Sampling(
        temperature=sent.temperature,
        top_p=sent.top_p,
        top_k=top_k(sent.top_k),
        min_p=sent.min_p,
        seed=sent.seed,
        frequency_penalty=sent.frequency_penalty,
        presence_penalty=sent.presence_penalty,
        repetition_penalty=sent.repetition_penalty,
        logprobs=sent.top_logprobs or (0 if with_logprobs else None),
    )


def _thinking(sent: wire.Reasoning | None) -> Thinking:
    if sent is None:
        return Thinking()
    for name, value in (sent.model_extra or {}).items():
        if value is not None:
            raise invalid(child("reasoning", name), "is not supported; use effort and summary", "invalid_argument")
    if sent.summary not in (None, "auto"):
        raise unknown("reasoning.summary", sent.summary, '"auto": reasoning is sent as it is, not summarised')
    return Thinking(effort=None if sent.effort is None else level(sent.effort, "reasoning.effort"))


def _format(sent: wire.Body) -> Format | None:
    at = "text.format"
    match sent.text.format if sent.text else None:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return Format()
        case {"type": "json_schema"} as found:
            schema = validate(wire.JsonSchema, found, at)
            return Format(schema.json_schema, schema.name, bool(schema.strict))
        case found:
            raise unknown(child(at, "type"), found.get("type"), '"text", "json_object" or "json_schema"')


def _echoed(sent: wire.Body, body: dict[str, Any]) -> dict[str, Any]:
    """The request's fields that the answer repeats, with what holds where the client set none."""
    reasoning = sent.reasoning or wire.Reasoning()
    return {
        "instructions": sent.instructions,
        "max_output_tokens": sent.max_output_tokens,
        "metadata": sent.metadata or {},
        "parallel_tool_calls": sent.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": sent.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "safety_identifier": sent.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": sent.temperature,
        "text": {"format": {"type": "text"}, **{k: v for k, v in (body.get("text") or {}).items() if v is not None}},
        "tool_choice": sent.tool_choice or "auto",
        "tools": sent.tools or [],
        "top_logprobs": sent.top_logprobs or 0,
        "top_p": sent.top_p,
        "truncation": "disabled",
        "user": sent.user,
    }
