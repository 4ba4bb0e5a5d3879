"""The one internal request that every dialect parses into.

Pure data: no JSON names, no dialect words. A `Request` that exists is valid; what a dialect cannot express stays at its
default. Text is `str`, tool schemas are parsed JSON (`dict`), everything else is a small frozen value.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
Dialect = Literal["chat", "completions", "messages", "responses"]


@dataclass(frozen=True, slots=True)
class Text:
    """Visible text of any role."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A reasoning segment in history. `sealed` is our opaque state as the client returned it, if it did."""

    text: str
    sealed: str | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """An image as the client sent it, not yet decoded."""

    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in an assistant turn. `arguments` is JSON text (an object), or the raw input of a custom tool."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to a call, alone in a message of role `tool`."""

    call_id: str
    parts: tuple[Text | Image, ...]
    is_error: bool = False


Part = Text | Reasoning | Image | ToolCall | ToolResult


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. Parts keep the order in which the client sent them."""

    role: Role
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool offered to the model under `name`, unique in the request.

    `wire_name` and `namespace` are what the client calls it, where that differs (a Responses namespace is flattened).
    `custom` tools take free text; the model sees one string parameter `input`. `grammar` is what that text must follow:
    its syntax, `lark` or `regex`, and its definition.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool = False
    custom: bool = False
    wire_name: str | None = None
    namespace: str | None = None
    grammar: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`required` may name the allowed tools; `names` empty means any offered tool. `auto` with names: only those."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters; None means "not set by the client", so that defaults are resolved in one place."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None  # None: off; n: the chosen token and its n best alternatives


@dataclass(frozen=True, slots=True)
class Thinking:
    """What the client asked of reasoning. None everywhere: the template's default.

    `effort` is one of `prompt.effort.LEVELS`; `budget` is the most reasoning tokens before the segment is closed.
    """

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """A structured output: `schema` None means any JSON object."""

    schema: dict[str, Any] | None = None
    name: str = "output"
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages to be rendered by the model's chat template."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A prompt of /v1/completions: text to be tokenised as it is, or token ids; `shown` is what those say, once a model
    has read them to be echoed."""

    content: str | tuple[int, ...]
    echo: bool = False
    shown: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One generation, whichever dialect carried it."""

    dialect: Dialect
    model: str
    input: Conversation | RawPrompt
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    sampling: Sampling = Sampling()
    thinking: Thinking = Thinking()
    format: Format | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    n: int = 1
    stream: bool = False
    stream_usage: bool = False  # chat and completions send usage on a stream only when asked
    sealed_reasoning: bool = False  # the client asked for opaque reasoning state
    timeout_ms: int | None = None
    ctx_size: int | None = None  # the context to load the model with, where this request loads it
    cache_salt: str = ""
    affinity: str | None = None
    echo_fields: dict[str, Any] = field(default_factory=dict)  # what the dialect repeats in its answer, as sent
    warnings: tuple[str, ...] = ()


NAME_LIMIT = 64  # characters; the longest tool name that all clients take


def flat_name(namespace: str, name: str) -> str:
    """The one name under which a model sees the tool `name` of `namespace`.

    Where it would be too long, its end is replaced by a digest, so that different tools keep different names.
    """
    full = f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"
    if len(full) <= NAME_LIMIT:
        return full
    digest = hashlib.sha256(full.encode()).hexdigest()[:8]
    return f"{full[: NAME_LIMIT - 9]}_{digest}"
