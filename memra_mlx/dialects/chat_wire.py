"""Wire models of `/v1/chat/completions`: names and types as the clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from memra_mlx.dialects.fields import Count, Fraction, Penalty, RepetitionPenalty, Seed, Temperature, TopK, Wire

Name = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class Turn(Wire):
    """One of `messages`, of any role."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: dict[str, Any] | None = None


class Text(Wire):
    """A `text` part."""

    text: str


class Refusal(Wire):
    """A `refusal` part."""

    refusal: str


class ImageUrl(Wire):
    """What an `image_url` part names."""

    url: str


class ImagePart(Wire):
    """An `image_url` part."""

    image_url: ImageUrl | str


class CalledFunction(Wire):
    """`function` of a call in history."""

    name: str
    arguments: str | dict[str, Any] | None = None


class FunctionCall(Wire):
    """A call in history."""

    id: str | None = None
    function: CalledFunction


class CalledCustom(Wire):
    """`custom` of a call in history."""

    name: str
    input: str | None = None


class CustomCall(Wire):
    """A custom tool's call in history."""

    id: str | None = None
    custom: CalledCustom


class Function(Wire):
    """`function` of a tool."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Wire):
    """A tool with JSON arguments."""

    function: Function


class Grammar(Wire):
    """`grammar` of a custom tool's format."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1)]


class CustomFormat(Wire):
    """`format` of a custom tool."""

    type: Literal["text", "grammar"]
    grammar: Grammar | None = None


class Custom(Wire):
    """`custom` of a tool."""

    name: Name
    description: str | None = None
    format: CustomFormat | None = None


class CustomTool(Wire):
    """A tool with free text input."""

    custom: Custom


class Named(Wire):
    """A tool named by a choice."""

    name: Name


class AllowedTools(Wire):
    """`allowed_tools` of a choice."""

    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


class Choice(Wire):
    """`tool_choice` as an object."""

    type: Literal["function", "custom", "allowed_tools"]
    function: Named | None = None
    custom: Named | None = None
    allowed_tools: AllowedTools | None = None


class JsonSchema(Wire):
    """`response_format.json_schema`."""

    name: Name
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Wire):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(Wire):
    """`stream_options`."""

    include_usage: bool | None = None


class TemplateArgs(Wire):
    """`chat_template_kwargs`."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    reasoning_effort: Any = None


class Body(Wire):
    """A request to generate."""

    model: Name
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=8)] | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: dict[str, Bias] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none", "required"] | Choice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Any = None
    reasoning: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    timeout_ms: int | None = None
    ctx_size: Count | None = None
    cache_salt: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    store: bool | None = None
    audio: Any = None
    modalities: list[str] | None = None
    web_search_options: Any = None
    functions: Any = None
    function_call: Any = None
