"""JSON schemas that a grammar can enforce: checked keyword by keyword, and cut down to what constrains.

Annotations and words that JSON Schema does not know are left out; a keyword that constrains and can't be enforced is
refused with its path, as is a schema too large to be compiled in bounded time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from llguidance import LLMatcher, LLParserLimits

Node = dict[str, Any] | bool

LIMITS = LLParserLimits(verbose_errors=False)
COMPACT = {"whitespace_flexible": False}
SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)  # fmt: skip
_OTHER_FORMATS = frozenset(
    ("idn-email", "idn-hostname", "uri-reference", "uri-template", "iri", "iri-reference", "json-pointer",
     "relative-json-pointer", "regex")
)  # fmt: skip
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
_REFUSED = frozenset(
    ("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties",
     "unevaluatedItems", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames", "$dynamicRef",
     "$recursiveRef")
)  # fmt: skip
# Values with which a refused keyword constrains nothing.
_IDLE: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,), "propertyNames": ({}, True, {"type": "string"}), "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}), "dependentRequired": ({},), "dependentSchemas": ({},), "dependencies": ({},),
}  # fmt: skip
_DEPTH, _NODES, _VALUES, _COUNT, _STEPS, _PATTERN = 40, 2_000, 10_000, 1_000_000, 1_000, 4_000


class SchemaError(ValueError):
    """A schema that can't be enforced; `path` leads to the keyword."""

    def __init__(self, path: str, message: str):
        super().__init__(message)
        self.path = path
        self.message = message


@dataclass(frozen=True, slots=True)
class Schema:
    """A checked schema. `defs` holds what its references name; `paths` says where each node came from."""

    root: Node
    defs: dict[str, Node] = field(default_factory=dict)
    paths: tuple[tuple[str, Node], ...] = ()

    def text(self, node: Node, style: dict[str, Any]) -> str:
        """JSON text of `node`, one of this schema's, with llguidance's options."""
        body = node if isinstance(node, dict) else {} if node else {"enum": []}
        used = self._used(node)
        return json.dumps({"x-guidance": style, **body, **({"$defs": used} if used else {})})

    def resolve(self, node: Node) -> Node:
        """`node`, or what it refers to where it is nothing but a reference."""
        seen: set[str] = set()
        while isinstance(node, dict) and set(node) == {"$ref"} and node["$ref"] not in seen:
            seen.add(node["$ref"])
            node = self.defs[node["$ref"].rpartition("/")[2]]
        return node

    def _used(self, node: Node) -> dict[str, Node]:
        found: dict[str, Node] = {}
        todo = [node]
        while todo:
            for name in _names(todo.pop()):
                if name not in found:
                    found[name] = self.defs[name]
                    todo.append(found[name])
        return found


@lru_cache(maxsize=256)
def checked(text: str) -> Schema:
    """The schema that is `text` in JSON. Raises `SchemaError`."""
    reader = _Reader(json.loads(text))
    root = reader.read(reader.document, "", 0)
    reader.drain()
    schema = Schema(root, reader.defs, tuple(reader.paths))
    if not _is_finite(schema):
        raise SchemaError("", "no finite value satisfies it: what it requires refers to itself")
    if problem := _problem(schema, root):
        raise _blame(schema, problem)
    return schema


def _names(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].rpartition("/")[2]
        for sub in _children(node):
            yield from _names(sub)


def _children(node: dict[str, Any]) -> Iterator[Any]:
    for key in ("properties", "patternProperties"):
        yield from node.get(key, {}).values()
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        yield from node.get(key, ())
    for key in ("items", "additionalProperties"):
        if key in node:
            yield node[key]


class _Reader:
    """Copies the part of a schema that constrains. `paths` are those of the copied nodes."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self.defs: dict[str, Node] = {}
        self.paths: list[tuple[str, Node]] = []
        self._pointers: dict[str, str] = {}
        self._todo: list[tuple[str, Any, str]] = []
        self._values = 0

    def drain(self) -> None:
        """Read what the references name."""
        while self._todo:
            name, target, path = self._todo.pop()
            self.defs[name] = self.read(target, path, 0)

    def read(self, node: Any, path: str, depth: int) -> Node:
        """A copy of `node`."""
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise SchemaError(path, "a schema must be an object or a boolean")
        if depth > _DEPTH:
            raise SchemaError(path, f"it is nested deeper than {_DEPTH} levels")
        if len(self.paths) >= _NODES:
            raise SchemaError(path, f"the schema has more than {_NODES} parts")
        copy: dict[str, Any] = {}
        self.paths.append((path, copy))
        for key, value in node.items():
            self._keyword(copy, key, value, (path, depth))
        _check_counts(copy, path)
        return copy

    def _keyword(self, copy: dict[str, Any], key: str, value: Any, place: tuple[str, int]) -> None:
        path, depth = place
        at = f"{path}.{key}"
        if key in _REFUSED and value not in _IDLE.get(key, ()):
            raise SchemaError(at, "this keyword can't be enforced here; leave it out")
        match key:
            case "properties" | "patternProperties":
                _require(isinstance(value, dict), at, "it must be an object of schemas")
                copy[key] = {name: self.read(sub, f"{at}.{name}", depth + 1) for name, sub in value.items()}
            case "anyOf" | "oneOf" | "allOf" | "prefixItems":
                _require(isinstance(value, list), at, "it must be a list of schemas")
                copy[key] = [self.read(sub, f"{at}[{n}]", depth + 1) for n, sub in enumerate(value)]
            case "items" | "additionalProperties":
                copy[key] = self.read(value, at, depth + 1)
            case "$ref":
                copy[key] = self._reference(value, at)
            case "enum" | "const":
                self._count_values(value if key == "enum" else [value], at)
                copy[key] = value
            case _ if key in _SIMPLE:
                _SIMPLE[key](value, at)
                if key != "format" or value in FORMATS:
                    copy[key] = value

    def _count_values(self, values: Any, at: str) -> None:
        _require(isinstance(values, list) and bool(values), at, "it must be a list with at least one value")
        self._values += len(values)
        _require(self._values <= _VALUES, at, f"more than {_VALUES} values are listed")
        _require(all(_is_shallow(value) for value in values), at, "a value is nested too deeply")

    def _reference(self, pointer: Any, at: str) -> str:
        _require(
            isinstance(pointer, str) and pointer[:2] in ("#", "#/"), at, 'only references like "#/$defs/name" work'
        )
        if pointer not in self._pointers:
            self._pointers[pointer] = f"d{len(self._pointers)}"
            target = _target(self.document, pointer, at)
            self._todo.append((self._pointers[pointer], target, pointer[1:].replace("/", ".")))
        return f"#/$defs/{self._pointers[pointer]}"


def _require(condition: bool, at: str, message: str) -> None:
    if not condition:
        raise SchemaError(at, message)


def _target(document: Any, pointer: str, at: str) -> Any:
    found = document
    for part in filter(None, pointer[1:].split("/")):
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise SchemaError(at, f"{pointer} is not in the schema")
    return found


def _is_shallow(value: Any, left: int = 20) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left > 0 and all(_is_shallow(item, left - 1) for item in inner)


def _check_type(value: Any, at: str) -> None:
    named = value if isinstance(value, list) else [value]
    _require(bool(named) and all(name in _TYPES for name in named), at, f"it must be one of {', '.join(_TYPES)}")


def _check_required(value: Any, at: str) -> None:
    _require(isinstance(value, list) and all(isinstance(name, str) for name in value), at, "it must be a list of names")


def _check_pattern(value: Any, at: str) -> None:
    _require(isinstance(value, str), at, "it must be text")
    _require(len(value) <= _PATTERN, at, f"it is longer than {_PATTERN} characters")


def _check_format(value: Any, at: str) -> None:
    _require(isinstance(value, str), at, "it must be text")
    known = ", ".join(sorted(FORMATS))
    _require(value not in _OTHER_FORMATS, at, f"{value} can't be enforced; leave it out or use one of {known}")


def _check_count(value: Any, at: str) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    _require(whole and value <= _COUNT, at, f"it must be a whole number up to {_COUNT}")


def _check_number(value: Any, at: str) -> None:
    _require(isinstance(value, int | float) and not isinstance(value, bool), at, "it must be a number")


def _check_multiple(value: Any, at: str) -> None:
    _check_number(value, at)
    digits = Decimal(str(value)).normalize().as_tuple().digits
    steps = int("".join(map(str, digits)))
    _require(value > 0 and steps <= _STEPS, at, f"it must be above 0, with at most {_STEPS} as its significant digits")


_SIMPLE: dict[str, Callable[[Any, str], None]] = {
    "type": _check_type, "required": _check_required, "pattern": _check_pattern, "format": _check_format,
    "multipleOf": _check_multiple,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _check_count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _check_number),
}  # fmt: skip


def _check_counts(node: dict[str, Any], path: str) -> None:
    """Free keys may repeat in the text, so that a count of them would not hold."""
    least = node.get("minProperties", 0)
    named = len(set(node.get("required", ())))
    _require(least <= max(1, named), f"{path}.minProperties", "more keys than are required by name can't be enforced")


def _is_finite(schema: Schema) -> bool:
    """Whether some finite value satisfies it, as far as its references go."""
    proved: set[str] = set()
    while True:
        new = {name for name, node in schema.defs.items() if name not in proved and _ends(node, proved)}
        if not new:
            return _ends(schema.root, proved)
        proved |= new


def _ends(node: Node, proved: set[str]) -> bool:
    if isinstance(node, bool):
        return node
    if "$ref" in node and node["$ref"].rpartition("/")[2] not in proved:
        return False
    if not all(_ends(sub, proved) for sub in node.get("allOf", ())):
        return False
    if any(key in node and not any(_ends(sub, proved) for sub in node[key]) for key in ("anyOf", "oneOf")):
        return False
    return _can_leave_out(node) or (_object_ends(node, proved) and _array_ends(node, proved))


def _can_leave_out(node: dict[str, Any]) -> bool:
    """Whether a scalar satisfies it, so that its properties and items do not matter."""
    named = node.get("type", _TYPES)
    return bool({named} - {"object", "array"} if isinstance(named, str) else set(named) - {"object", "array"})


def _object_ends(node: dict[str, Any], proved: set[str]) -> bool:
    if node.get("type") == "array":
        return True
    properties, other = node.get("properties", {}), node.get("additionalProperties", True)
    return all(_ends(properties.get(name, other), proved) for name in node.get("required", ()))


def _array_ends(node: dict[str, Any], proved: set[str]) -> bool:
    if node.get("type") == "object":
        return True
    least, first = node.get("minItems", 0), node.get("prefixItems", [])
    needed = [*first[:least], *([node["items"]] if least > len(first) and "items" in node else [])]
    return all(_ends(sub, proved) for sub in needed)


def _problem(schema: Schema, node: Node) -> str:
    grammar = LLMatcher.grammar_from_json_schema(schema.text(node, COMPACT))
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    return str(messages[0]) if failed else ""


def _blame(schema: Schema, problem: str) -> SchemaError:
    """The error of the innermost part that can't be compiled on its own."""
    for path, node in sorted(schema.paths, key=lambda item: -len(item[0]))[:200]:
        if isinstance(node, dict) and (found := _problem(schema, node)):
            return SchemaError(f"{path}{_keyword_of(node, found)}", _plain(found))
    return SchemaError("", _plain(problem))


def _keyword_of(node: dict[str, Any], problem: str) -> str:
    named = (key for key in node if key in problem or (key == "pattern" and "regex" in problem.lower()))
    return f".{key}" if (key := next(named, None)) else ""


def _plain(problem: str) -> str:
    lines = [line.strip() for line in problem.splitlines() if line.strip()]
    if "oneOf" in problem:
        return "its choices may overlap, which can't be enforced; use anyOf"
    return f"it can't be enforced: {(lines or ['unknown'])[-1 if 'regex parse' in problem else 0][:200]}"
