"""Wire models of `/v1/messages`: names and types as the clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from memra_mlx.dialects.fields import Count, Fraction, Temperature, TopK, Wire


class Metadata(Wire):
    """`metadata`."""

    user_id: str | None = None


class Thinking(Wire):
    """`thinking`."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class Schema(Wire):
    """`output_config.format`."""

    type: Literal["json_schema", "json_object"]
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class ToolChoice(Wire):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Tool(Wire):
    """A tool of the client."""

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class Turn(Wire):
    """One of `messages`."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class Text(Wire):
    """A `text` block."""

    text: str


class Source(Wire):
    """Where an image or a document comes from."""

    type: str
    media_type: str | None = None
    data: str | None = None


class Sourced(Wire):
    """An `image` or `document` block."""

    source: Source
    title: str | None = None


class ToolUse(Wire):
    """A `tool_use` block."""

    id: str | None = None
    name: str
    input: dict[str, Any] | str | None = None


class ToolResult(Wire):
    """A `tool_result` block."""

    tool_use_id: str | None = None
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None


class Thought(Wire):
    """A `thinking` block."""

    thinking: str | None = None
    signature: str | None = None


class ToolReference(Wire):
    """A `tool_reference` block."""

    tool_name: str


class LateSystem(Wire):
    """A `mid_conv_system` block."""

    text: str | None = None
    content: str | list[dict[str, Any]] | None = None


class Prompt(Wire):
    """What `/v1/messages` and `/v1/messages/count_tokens` share."""

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: dict[str, Any] | None = None
    output_format: Schema | None = None
    cache_salt: str | None = None
    metadata: Metadata | None = None
    mcp_servers: Any = None
    container: Any = None


class Body(Prompt):
    """A request to generate."""

    max_tokens: Count
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: TopK | None = None
    timeout_ms: int | None = None
    ctx_size: Count | None = None
