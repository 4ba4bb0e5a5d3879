"""Copies the part of a JSON schema that constrains, keyword by keyword.

Annotations and words that JSON Schema does not know are left out; a keyword that constrains and can't be enforced is
refused with its path. An object that lists its properties and does not say whether it takes others takes none: what is
generated still satisfies the schema, and a small model does not go on inventing them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memra_mlx.prompt.coerce import pointed
from memra_mlx.prompt.grammar_finite import Node
from memra_mlx.prompt.grammar_keywords import EXACT, FORMATS, IDLE, REFUSED, SIMPLE, SchemaError, require

_DEPTH, _NODES, _VALUES = 40, 2_000, 10_000
_COMBINED = frozenset(("anyOf", "oneOf", "allOf", "$ref"))
_OF_OBJECTS = _COMBINED | {
    "properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a schema stands. `alone`: no other schema speaks of the same value, so that an object may be closed."""

    path: str
    depth: int = 0
    alone: bool = True

    def inner(self, step: str) -> _Place:
        """The place of a part."""
        return _Place(f"{self.path}{step}", self.depth + 1, self.alone)


class Reader:
    """Reads one document. `defs` is what references name, `paths` where each copied schema came from."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self.defs: dict[str, Node] = {}
        self.paths: list[tuple[str, Node]] = []
        self._names: dict[tuple[str, bool], str] = {}
        self._todo: list[tuple[str, Any, _Place]] = []
        self._values = 0

    def root(self) -> Node:
        """The document as a schema. Raises `SchemaError`."""
        root = self._read(self._document, _Place(""))
        while self._todo:
            name, target, place = self._todo.pop()
            self.defs[name] = self._read(target, place)
        return root

    def _read(self, node: Any, place: _Place) -> Node:
        if isinstance(node, bool):
            return node
        require(isinstance(node, dict), place.path, "a schema must be an object or a boolean")
        require(place.depth <= _DEPTH, place.path, f"it is nested deeper than {_DEPTH} levels")
        require(len(self.paths) < _NODES, place.path, f"the schema has more than {_NODES} parts")
        copy: dict[str, Any] = {}
        self.paths.append((place.path, copy))
        for key, value in node.items():
            others = (_OF_OBJECTS if key in _COMBINED else _COMBINED) - {key}
            self._keyword(copy, key, value, replace(place, alone=place.alone and not others & node.keys()))
        _check_counts(copy, place.path)
        if place.alone and _may_be_closed(copy):
            copy["additionalProperties"] = False
        _drop_idle_counts(copy)
        return copy

    def _keyword(self, copy: dict[str, Any], key: str, value: Any, place: _Place) -> None:
        at = f"{place.path}.{key}"
        require(key not in REFUSED or value in IDLE.get(key, ()), at, "this can't be enforced here; leave it out")
        match key:
            case "properties" | "patternProperties":
                require(isinstance(value, dict), at, "it must be an object of schemas")
                copy[key] = {name: self._read(sub, place.inner(f".{key}.{name}")) for name, sub in value.items()}
            case "anyOf" | "oneOf" | "allOf" | "prefixItems":
                require(isinstance(value, list), at, "it must be a list of schemas")
                inside = replace(place, alone=place.alone and key != "allOf")
                copy[key] = [self._read(sub, inside.inner(f".{key}[{n}]")) for n, sub in enumerate(value)]
            case "items" | "additionalProperties":
                copy[key] = self._read(value, place.inner(f".{key}"))
            case "$ref":
                copy[key] = self._reference(value, at, place.alone)
            case "enum" | "const":
                self._count_values(value if key == "enum" else [value], at)
                copy[key] = value
            case _ if key in SIMPLE:
                SIMPLE[key](value, at)
                if key != "format" or value in FORMATS:
                    copy[key] = value

    def _count_values(self, values: Any, at: str) -> None:
        require(isinstance(values, list) and bool(values), at, "it must be a list with at least one value")
        self._values += len(values)
        require(self._values <= _VALUES, at, f"more than {_VALUES} values are listed")
        require(all(map(_is_simple, values)), at, "a value is nested too deeply, or is a number beyond 2^53")

    def _reference(self, pointer: Any, at: str, alone: bool) -> str:
        local = isinstance(pointer, str) and pointer[:2] in ("#", "#/")
        require(local, at, 'only references like "#/$defs/name" work')
        key = (pointer, alone)
        if key not in self._names:
            self._names[key] = f"d{len(self._names)}"
            path = pointer[1:].replace("/", ".")
            self._todo.append((self._names[key], _target(self._document, pointer, at), _Place(path, 0, alone)))
        return f"#/$defs/{self._names[key]}"


def _drop_idle_counts(node: dict[str, Any]) -> None:
    """Counts that hold anyhow, which llguidance would refuse."""
    closed = node.get("additionalProperties") is False and "patternProperties" not in node
    if closed and node.get("maxProperties", 0) >= len(node.get("properties", ())):
        node.pop("maxProperties", None)
    if node.get("minProperties", 0) <= len(set(node.get("required", ()))):
        node.pop("minProperties", None)


def _may_be_closed(node: Mapping[str, Any]) -> bool:
    if "properties" not in node or node.keys() & {*_COMBINED, "additionalProperties", "patternProperties"}:
        return False
    return "minProperties" not in node and set(node.get("required", ())) <= node["properties"].keys()


def _target(document: Any, pointer: str, at: str) -> Any:
    try:
        return pointed(document, pointer)
    except LookupError as fault:
        raise SchemaError(at, f"{pointer} is not in the schema") from fault


def _is_simple(value: Any, left: int = 20) -> bool:
    """Whether it is nested at most so deep, and its numbers survive as floating point (llguidance reads them so)."""
    if isinstance(value, int | float):
        return abs(value) <= EXACT
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left > 0 and all(_is_simple(item, left - 1) for item in inner)


def _check_counts(node: dict[str, Any], path: str) -> None:
    """Free keys may repeat in the text, so that a count of them would not hold."""
    least = node.get("minProperties", 0)
    named = len(set(node.get("required", ())))
    require(least <= max(1, named), f"{path}.minProperties", "more keys than are required by name can't be enforced")
