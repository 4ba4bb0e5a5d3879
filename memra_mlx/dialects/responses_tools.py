"""The tools of a Responses request: what the model is offered, and the way from the client's names to the model's.

function     as it is
namespace    its tools, each under `flat_name`; the client's two names come back with every call
custom       free text in; the grammar, if any, is enforced, and told to the model in the description
other types  run on other servers: left out, with a warning
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memra_mlx.dialects.content import Notes, check_choice, described
from memra_mlx.dialects.fields import brief, child, item, unknown, validate
from memra_mlx.dialects.responses_wire import (
    AllowedTools,
    CustomFormat,
    CustomTool,
    FunctionTool,
    NamedChoice,
    NamespaceTool,
    Typed,
)
from memra_mlx.errors import invalid
from memra_mlx.request import Tool, ToolChoice, flat_name

_CUSTOM_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
_CHOICES = '"auto", "none", "required", a named function or custom tool, or allowed_tools'


class Offer:
    """The tools offered, in order, under names that are unique for the model."""

    def __init__(self, sent: list[dict[str, Any]], notes: Notes) -> None:
        self._tools: dict[str, Tool] = {}
        for at, tool in _tools(sent, "tools", notes):
            self._add(tool, at)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All of them."""
        return tuple(self._tools.values())

    def shown(self, name: str, namespace: str | None) -> str:
        """What the model knows the client's tool `name` as; also for tools of old turns that are offered no more."""
        tool = self._find(name, namespace)
        return tool.name if tool else _flat(name, namespace)

    def choice(self, sent: str | dict[str, Any] | None, parallel: bool) -> ToolChoice:
        """`tool_choice`. Raises a 400 for a form or a tool that isn't there."""
        at = "tool_choice"
        match sent:
            case None | "auto":
                found = ToolChoice("auto", (), parallel)
            case "none":
                found = ToolChoice("none", (), parallel)
            case "required":
                found = ToolChoice("required", (), parallel)
            case {"type": "function" | "custom"}:
                found = ToolChoice("required", (self._named(validate(NamedChoice, sent, at), at),), parallel)
            case {"type": "allowed_tools"}:
                found = self._allowed(validate(AllowedTools, sent, at), parallel)
            case {"type": kind}:
                raise unknown(child(at, "type"), kind, _CHOICES)
            case _:
                raise unknown(at, sent, _CHOICES)
        return check_choice(found, self.tools, at)

    def _allowed(self, sent: AllowedTools, parallel: bool) -> ToolChoice:
        named = [(item("tool_choice.tools", index), tool) for index, tool in enumerate(sent.tools)]
        names = tuple(self._named(tool, at) for at, tool in named if tool.type in ("function", "custom"))
        if not names:
            raise invalid("tool_choice.tools", "names none of the function and custom tools offered")
        return ToolChoice(sent.mode, names, parallel)

    def _named(self, sent: NamedChoice, at: str) -> str:
        name = sent.name or (sent.function.name if sent.function else None)
        if not name:
            raise invalid(child(at, "name"), "this field is required", "missing_argument")
        tool = self._find(name, sent.namespace)
        if tool is None:
            raise invalid(child(at, "name"), f"the tool {brief(name)} is not in tools")
        return tool.name

    def _find(self, name: str, namespace: str | None) -> Tool | None:
        for tool in self._tools.values():
            if (tool.wire_name or tool.name, tool.namespace) == (name, namespace):
                return tool
        return None

    def _add(self, tool: Tool, at: str) -> None:
        if self._find(tool.wire_name or tool.name, tool.namespace) is not None:
            raise invalid(
                child(at, "name"), f"{brief(tool.wire_name or tool.name)} is already the name of another tool"
            )
        if tool.name in self._tools:
            raise invalid(child(at, "name"), f"the model would know two tools as {brief(tool.name)}; rename one")
        self._tools[tool.name] = tool


def _flat(name: str, namespace: str | None) -> str:
    return flat_name(namespace, name) if namespace else name


def _tools(
    sent: list[dict[str, Any]], at: str, notes: Notes, namespace: str | None = None
) -> Iterator[tuple[str, Tool]]:
    """Each usable tool with its path in the request."""
    for index, body in enumerate(sent):
        here = item(at, index)
        match validate(Typed, body, here).type:
            case "function":
                yield here, _function(body, here, namespace)
            case "custom":
                yield here, _custom(validate(CustomTool, body, here), here, namespace)
            case "namespace" if namespace is None:
                group = validate(NamespaceTool, body, here)
                yield from _tools(group.tools, child(here, "tools"), notes, group.name)
            case str() as kind:
                notes.add(f"tool {kind}", f"{here}: tools of type {brief(kind)} are not run here and were left out")
            case _:
                raise invalid(child(here, "type"), "this field is required", "missing_argument")


def _function(body: dict[str, Any], at: str, namespace: str | None) -> Tool:
    if "name" not in body and "function" in body:
        body, at = body["function"], child(at, "function")
    tool = validate(FunctionTool, body, at)
    return Tool(
        name=_flat(tool.name, namespace),
        description=tool.description or "",
        parameters=tool.parameters or {"type": "object", "properties": {}},
        strict=bool(tool.strict),
        wire_name=tool.name if namespace else None,
        namespace=namespace,
    )


def _custom(tool: CustomTool, at: str, namespace: str | None) -> Tool:
    grammar = _grammar(tool.format, child(at, "format"))
    return Tool(
        name=_flat(tool.name, namespace),
        description=described(tool.description or "", grammar),
        parameters=_CUSTOM_PARAMETERS,
        custom=True,
        wire_name=tool.name if namespace else None,
        namespace=namespace,
        grammar=grammar,
    )


def _grammar(sent: CustomFormat | None, at: str) -> tuple[str, str] | None:
    """Syntax and definition of what a custom tool's input must follow."""
    if sent is None or sent.type == "text":
        return None
    if not sent.definition:
        raise invalid(child(at, "definition"), "a grammar needs its definition", "missing_argument")
    if sent.syntax not in ("lark", "regex"):
        raise unknown(child(at, "syntax"), sent.syntax, '"lark" or "regex"')
    return sent.syntax, sent.definition
