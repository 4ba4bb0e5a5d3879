"""Values of tool arguments in the types of the tool's schema."""

from __future__ import annotations

import ast
import json
from typing import Any
from urllib.parse import unquote

_JSON_TYPES: dict[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null",
}  # fmt: skip
_WORDS = {"true": True, "false": False}
_CHOICES = ("anyOf", "oneOf", "allOf")
_DEPTH = 8  # references followed one behind the other


def properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The properties of an object schema, their references followed."""
    found = schema.get("properties")
    return {name: _followed(sub, schema) for name, sub in found.items()} if isinstance(found, dict) else {}


def pointed(document: Any, pointer: str) -> Any:
    """What a JSON pointer (`#/…`) names. Raises LookupError."""
    for part in filter(None, pointer[1:].split("/")):
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(document, list) and key.isdigit():
            document = document[int(key)]
        elif isinstance(document, dict):
            document = document[key]
        else:
            raise LookupError(pointer)
    return document


def _followed(node: Any, document: dict[str, Any], left: int = _DEPTH) -> Any:
    if not isinstance(node, dict) or left == 0:
        return node
    pointer = node.get("$ref")
    if isinstance(pointer, str) and pointer.startswith("#"):
        rest = {key: value for key, value in node.items() if key != "$ref"}
        try:
            target = pointed(document, pointer)
        except LookupError:
            return rest
        return _followed({**target, **rest} if isinstance(target, dict) else rest, document, left - 1)
    words = [word for word in _CHOICES if isinstance(node.get(word), list)]
    return {**node, **{word: [_followed(sub, document, left - 1) for sub in node[word]] for word in words}}


def types(schema: object) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it says so itself; empty: any."""
    if not isinstance(schema, dict):
        return frozenset()
    named = schema.get("type")
    found = {named} if isinstance(named, str) else set(filter(_is_text, named)) if isinstance(named, list) else set()
    if not found:
        only = [schema["const"]] if "const" in schema else []
        values = schema["enum"] if isinstance(schema.get("enum"), list) else only
        found = {_JSON_TYPES.get(type(value), "object") for value in values}
    for choice in schema.get("allOf") or [] if isinstance(schema.get("allOf"), list) else []:
        found = found & inner if found and (inner := types(choice)) else found or set(types(choice))
    for word in ("anyOf", "oneOf"):
        for choice in schema.get(word) or [] if isinstance(schema.get(word), list) else []:
            inner = types(choice)
            if not inner:
                return frozenset()
            found |= inner
    return frozenset(found)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def from_text(text: str, allowed: frozenset[str]) -> Any:
    """The value that bare text stands for."""
    if allowed == {"string"}:
        return text
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        value = _loose(text, allowed)
    if not allowed:
        return value if isinstance(value, dict | list) else text
    return fitted(value, allowed, text)


def _loose(text: str, allowed: frozenset[str]) -> Any:
    word = text.strip().lower()
    if "boolean" in allowed and word in _WORDS:
        return _WORDS[word]
    if "null" in allowed and word in ("null", "none", ""):
        return None
    if allowed & {"object", "array"}:
        try:
            value = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return text
        return value if isinstance(value, dict | list) else text
    return text


def fitted(value: Any, allowed: frozenset[str], text: str | None = None) -> Any:
    """`value`, or its nearest form that the types allow. `text` is how it was written, if as bare text."""
    if not allowed or _is_of(value, allowed):
        return value
    if isinstance(value, float) and "integer" in allowed and value.is_integer():
        return int(value)
    if isinstance(value, str) and text is None:
        read = from_text(value, allowed)
        return read if _is_of(read, allowed) else value
    if "string" in allowed:
        return text if text is not None else json.dumps(value, ensure_ascii=False)
    return value if text is None else text


def _is_of(value: Any, allowed: frozenset[str]) -> bool:
    kind = _JSON_TYPES.get(type(value), "object")
    return kind in allowed or (kind == "integer" and "number" in allowed)


def arguments(values: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Every argument in its type."""
    known = properties(schema)
    return {name: fitted(value, types(known.get(name))) for name, value in values.items()}
