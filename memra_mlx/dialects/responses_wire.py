"""The JSON of /v1/responses requests, as far as we read it.

Items, parts and tools come in more types than we know, so they stay objects here and each is validated by its own model
once its `type` has been read.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from memra_mlx.dialects.fields import Count, Fraction, Penalty, RepetitionPenalty, Seed, Temperature, TopK, Wire

Object = dict[str, Any]
Name = Annotated[str, Field(min_length=1, max_length=256)]


class TextConfig(Wire):
    """`text`: how the answer's text is to look. `verbosity` is left to the model."""

    format: Object | None = None


class JsonSchema(Wire):
    """`text.format` of type `json_schema`, flat."""

    name: Name = "output"
    json_schema: Object = Field(alias="schema")
    strict: bool | None = None


class Reasoning(Wire):
    """`reasoning`: its other keys are kept, to be refused by name."""

    model_config = ConfigDict(extra="allow")

    effort: str | None = None
    summary: str | None = None


class Typed(Wire):
    """An item or a tool, as far as all of them are alike."""

    type: str | None = None


class Part(Wire):
    """A part of a message, of a reasoning item, or of a tool's output."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | Object | None = None
    file_id: str | None = None


class MessageItem(Wire):
    """`message`, also without a type."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part] | None = None


class ReasoningItem(Wire):
    """`reasoning`, as this or another server sent it."""

    summary: list[Part] | None = None
    content: list[Part] | None = None
    encrypted_content: str | None = None


class CallItem(Wire):
    """`function_call` and `custom_tool_call`."""

    id: str | None = None
    call_id: str | None = None
    name: Name
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None


class OutputItem(Wire):
    """`function_call_output` and `custom_tool_call_output`."""

    call_id: str | None = None
    output: str | list[Part] | None = None


class FunctionTool(Wire):
    """A `function`: flat, in a namespace, or in the nested form of chat."""

    name: Name
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class CustomFormat(Wire):
    """What a custom tool takes: any text, or text of a grammar."""

    type: Literal["text", "grammar"]
    syntax: str | None = None
    definition: str | None = None


class CustomTool(Wire):
    """A `custom` tool: free text in."""

    name: Name
    description: str | None = None
    format: CustomFormat | None = None


class NamespaceTool(Wire):
    """A `namespace` of tools."""

    name: Name
    tools: list[Object]


class NamedChoice(Wire):
    """A tool named in `tool_choice`, in the flat form or the nested one of chat."""

    type: str
    name: str | None = None
    namespace: str | None = None
    function: FunctionTool | None = None


class AllowedTools(Wire):
    """`tool_choice` of type `allowed_tools`."""

    mode: Literal["auto", "required"]
    tools: list[NamedChoice]


class Body(Wire):
    """A request to /v1/responses."""

    model: Name
    input: str | list[Object]
    instructions: str | None = None
    tools: list[Object] | None = None
    tool_choice: str | Object | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Count | None = None
    stream: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    top_k: TopK | None = None
    min_p: Fraction | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    stop: str | list[str] | None = None
    timeout_ms: int | None = None
    ctx_size: Count | None = None
    cache_salt: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: Object | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    store: bool | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
