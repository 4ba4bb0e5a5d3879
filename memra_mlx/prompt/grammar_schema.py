"""JSON schemas that a grammar can enforce."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from memra_mlx.prompt.grammar_finite import Node, is_finite
from memra_mlx.prompt.grammar_keywords import SchemaError
from memra_mlx.prompt.grammar_reader import Reader

LIMITS = LLParserLimits(verbose_errors=False)
COMPACT = {"whitespace_flexible": False}
SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
PYTHON = {**SPACED, "json_allowed_escapes": 'nrbtf\\"'}  # what JSON and Python write alike
_REPORTED = 200


@dataclass(frozen=True, slots=True)
class Schema:
    """A checked schema. `defs` holds what its references name; `paths` says where each node came from."""

    root: Node
    defs: dict[str, Node] = field(default_factory=dict)
    paths: tuple[tuple[str, Node], ...] = ()

    def text(self, node: Node, style: Mapping[str, Any]) -> str:
        """JSON text of `node`, one of this schema's, with llguidance's options."""
        body = node if isinstance(node, dict) else {} if node else {"enum": []}
        used = self._used(node)
        return json.dumps({"x-guidance": dict(style), **body, **({"$defs": used} if used else {})})

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
    reader = Reader(json.loads(text))
    root = reader.root()
    schema = Schema(root, reader.defs, tuple(reader.paths))
    if not is_finite(schema.root, schema.defs):
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


def _problem(schema: Schema, node: Node) -> str:
    grammar = LLMatcher.grammar_from_json_schema(schema.text(node, COMPACT))
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    return str(messages[0]) if failed else ""


def _blame(schema: Schema, problem: str) -> SchemaError:
    """The error of the innermost part that can't be compiled on its own."""
    for path, node in sorted(schema.paths, key=lambda item: -len(item[0]))[:_REPORTED]:
        if isinstance(node, dict) and (found := _problem(schema, node)):
            return SchemaError(f"{path}{_keyword_of(node, found)}", _plain(found))
    return SchemaError("", _plain(problem))


def _keyword_of(node: dict[str, Any], problem: str) -> str:
    words = f"{problem} minProperties maxProperties" if "min/maxProperties" in problem else problem
    names = sorted(node, key=len, reverse=True)
    named = (key for key in names if key in words or (key == "pattern" and "regex" in problem.lower()))
    return f".{key}" if (key := next(named, None)) else ""


def _plain(problem: str) -> str:
    lines = [line.strip() for line in problem.splitlines() if line.strip()]
    if "oneOf" in problem:
        return "its choices may overlap, which can't be enforced; use anyOf"
    return f"it can't be enforced: {(lines or ['unknown'])[-1 if 'regex parse' in problem else 0][:200]}"
