"""Gemma's calls: `call:NAME{key:value,…}`, keys without quotes, strings without escapes between marks of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memra_mlx.prompt.grammar_bare import bare, enclosed
from memra_mlx.prompt.grammar_custom import GrammarError, input_terminal
from memra_mlx.prompt.grammar_finite import TYPES, Node
from memra_mlx.prompt.grammar_keyed import in_order, object_shapes
from memra_mlx.prompt.grammar_keywords import SchemaError
from memra_mlx.prompt.grammar_marks import any_of, join, literal
from memra_mlx.prompt.grammar_rules import Offer, Rules
from memra_mlx.prompt.grammar_schema import COMPACT, Schema

_SCALARS = ("number", "integer", "boolean", "null")
_FREE: Node = {"type": ["string", *_SCALARS]}


@dataclass(frozen=True, slots=True)
class Gemma:
    """The form of one generation of models: the mark around strings, which names fit, whether values may be lists and
    objects, and what else strings may not hold."""

    quote: str
    names: re.Pattern[str]
    nested: bool
    text: str = ""

    def write(self, rules: Rules, offer: Offer) -> str:
        """The expression of a call to a tool."""
        if not self.names.fullmatch(offer.name):
            raise GrammarError(f"the tool {offer.name}: this model's call format can't carry its name")
        if offer.grammar is not None:
            terminal = enclosed([input_terminal(rules, offer, escape=False), *self.parts()], self.quote, trimmed=False)
            body = join(literal("input:"), self.quoted(rules, terminal))
        elif offer.schema is None:
            raise GrammarError(f"the tool {offer.name}: make it strict, this model's format can't leave it free")
        else:
            try:
                shapes = object_shapes(offer.schema, offer.schema.root)
                writer = _Values(rules, self, offer.schema)
                body = any_of(writer.object(shape, "") for shape in shapes)
            except SchemaError as fault:
                raise GrammarError(f"the tool {offer.name}: parameters{fault.path}: {fault.message}") from fault
        return rules.add("call", join(literal(f"call:{offer.name}{{"), body, literal("}")))

    def parts(self) -> list[str]:
        """What all strings match, beside what their schema says."""
        return [self.text] if self.text else []

    def quoted(self, rules: Rules, terminal: str) -> str:
        """A string whose text is matched by the body of a terminal."""
        mark, name = rules.marks.lark(self.quote), rules.add("TEXT", terminal)
        if mark.startswith("<["):
            return join(mark, name, mark)
        return join(mark, rules.add("text", join(name, mark), "[lazy]"))


@dataclass(slots=True)
class _Values:
    """Values of one schema."""

    rules: Rules
    form: Gemma
    schema: Schema
    known: dict[str, str] = field(default_factory=dict)

    def object(self, node: Mapping[str, Any], path: str) -> str:
        """The pairs of an object, without its braces."""
        required = set(node.get("required", ()))
        pairs = []
        for key, value in node.get("properties", {}).items():
            if re.fullmatch(r"\w+", key):
                text = join(literal(f"{key}:"), self.value(value, f"{path}.properties.{key}"))
                pairs.append((self.rules.add("pair", text), key in required))
            elif key in required:
                raise SchemaError(f"{path}.properties.{key}", "this model's call format can't carry this name")
        return in_order(self.rules, pairs, literal(",")) or '""'

    def value(self, node: Node, path: str) -> str:
        """Any value that `node` allows."""
        if node is True or node == {}:
            node = _FREE
        if not isinstance(node, dict):
            raise SchemaError(path, "nothing satisfies it")
        if set(node) == {"$ref"}:
            return self._referred(node, path)
        for key in ("anyOf", "oneOf"):
            if key in node:
                self._only(node, {key, "type"}, path)
                return any_of(self.value(sub, f"{path}.{key}[{n}]") for n, sub in enumerate(node[key]))
        if node.keys() & {"enum", "const"}:
            self._only(node, {"enum", "const", "type"}, path)
            return any_of(self._constant(value, path) for value in node.get("enum", [node.get("const")]))
        named = node.get("type", TYPES if self.form.nested else ["string", *_SCALARS])
        kinds = [named] if isinstance(named, str) else list(named)
        return any_of(self._of_type(node, kind, path) for kind in kinds)

    def _referred(self, node: dict[str, Any], path: str) -> str:
        name = node["$ref"].rpartition("/")[2]
        if name not in self.known:
            self.known[name] = self.rules.declare("ref")
            self.rules.define(self.known[name], self.value(self.schema.defs[name], path))
        return self.known[name]

    def _of_type(self, node: dict[str, Any], kind: str, path: str) -> str:
        if kind in _SCALARS:
            return self.rules.add("json", f"%json {self.schema.text({**node, 'type': kind}, COMPACT)}")
        if kind == "string":
            own = bare(node, self.form.quote, trimmed=False, path=path)
            return self.form.quoted(self.rules, " & ".join([*self.form.parts(), own]))
        if not self.form.nested:
            raise SchemaError(path, f"this model's call format has no {kind}s inside of arguments")
        if kind == "array":
            return self._array(node, path)
        shapes = object_shapes(self.schema, node, path)
        return any_of(join(literal("{"), self.object(shape, path), literal("}")) for shape in shapes)

    def _array(self, node: dict[str, Any], path: str) -> str:
        self._only(node, {"type", "items", "minItems", "maxItems"}, path)
        item = self.value(node.get("items", _FREE), f"{path}.items")
        least, most = node.get("minItems", 0), node.get("maxItems")
        more = f"({literal(',')} {item}){{{max(0, least - 1)},{'' if most is None else max(0, most - 1)}}}"
        body = "" if most == 0 else f"{item} {more}" if least else f"({item} {more})?"
        return join(literal("["), body, literal("]"))

    def _constant(self, value: Any, path: str) -> str:
        if isinstance(value, str):
            return self.form.quoted(self.rules, bare({"const": value}, self.form.quote, trimmed=False))
        if isinstance(value, dict | list):
            raise SchemaError(path, "this model's call format has no lists or objects as constants")
        return self.rules.add("json", f"%json {self.schema.text({'const': value}, COMPACT)}")

    def _only(self, node: dict[str, Any], allowed: set[str], path: str) -> None:
        if others := node.keys() - allowed:
            raise SchemaError(f"{path}.{min(others)}", "this model's call format has no place for it here")
