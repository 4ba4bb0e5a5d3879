"""Arguments written key by key: in tags, as Python's keyword arguments, or in Gemma's form.

Only listed properties are written, in their order, so that what the model can write satisfies the schema.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memra_mlx.prompt import coerce
from memra_mlx.prompt.grammar_bare import bare, enclosed
from memra_mlx.prompt.grammar_custom import GrammarError, input_terminal, nested_input
from memra_mlx.prompt.grammar_finite import Node
from memra_mlx.prompt.grammar_keywords import SchemaError
from memra_mlx.prompt.grammar_marks import any_of, join, literal
from memra_mlx.prompt.grammar_rules import Offer, Rules
from memra_mlx.prompt.grammar_schema import SPACED, Schema

_OF_SHAPES = ("type", "properties", "required", "additionalProperties")
_IN_TAGS = re.compile(r"[^\s<>\"'=]+")


@dataclass(frozen=True, slots=True)
class Keys:
    """How a style writes a call. `call` and `end` stand around the arguments, `before` and `after` around a value; NAME
    and KEY stand for names. `strings`: `bare` if pure strings stand without quotes, `only_bare` if a value that may be
    a string always does, `json` if all values are JSON. `trimmed`: white space at the edges of a value is lost."""

    call: str
    end: str
    before: str
    after: str
    comma: str = ""
    strings: str = "bare"
    trimmed: bool = False
    names: re.Pattern[str] = _IN_TAGS
    json: Mapping[str, Any] = field(default_factory=lambda: SPACED)

    def write(self, rules: Rules, offer: Offer) -> str:
        """The expression of a call to a tool."""
        if not self.names.fullmatch(offer.name) or keyword.iskeyword(offer.name):
            raise GrammarError(f"the tool {offer.name}: this model's call format can't carry its name")
        mark = rules.marks.lark
        writer = _Writer(rules, self, offer)
        end = mark(self.end)
        return rules.add("call", join(mark(self.call.replace("NAME", offer.name)), writer.arguments(), end))


class _Writer:
    def __init__(self, rules: Rules, keys: Keys, offer: Offer):
        self._rules = rules
        self._keys = keys
        self._offer = offer

    def arguments(self) -> str:
        if self._offer.grammar is not None:
            return join(self._before("input"), self._input())
        if self._offer.schema is None:
            return self._free()
        schema = self._offer.schema
        try:
            shapes = object_shapes(schema, schema.root)
            return any_of(self._object(schema, shape) for shape in shapes)
        except SchemaError as fault:
            raise GrammarError(f"the tool {self._offer.name}: parameters{fault.path}: {fault.message}") from fault

    def _before(self, key: str) -> str:
        return self._rules.marks.lark(self._keys.before.replace("KEY", key))

    def _closed(self, terminal: str) -> str:
        """A terminal's body and what stands behind the value."""
        after = self._rules.marks.lark(self._keys.after)
        if re.search(r"<\[\d+\]>", after):
            # a line break before the mark belongs to neither
            return join(self._rules.add("VALUE", terminal), after.removeprefix('"\\n" '))
        return self._rules.add("value", join(self._rules.add("VALUE", terminal), after), "[lazy]")

    def _input(self) -> str:
        if self._keys.strings == "json":
            name = input_terminal(self._rules, self._offer, escape=True)
            return join(literal('"'), name, literal('"'), self._rules.marks.lark(self._keys.after))
        nested = nested_input(self._rules, self._offer)
        if nested:
            return join(nested, self._rules.marks.lark(self._keys.after))
        name = input_terminal(self._rules, self._offer, escape=False)
        return self._closed(enclosed([name], self._keys.after.strip(), trimmed=self._keys.trimmed))

    def _free(self) -> str:
        if self._keys.comma:
            raise GrammarError(f"the tool {self._offer.name}: make it strict, this model's format can't leave it free")
        head, tail = self._keys.before.split("KEY")
        mark = self._rules.marks.lark
        value = self._closed(bare({}, self._keys.after.strip(), trimmed=False))
        pair = join(mark(head), r"/[^\s<>\"]+/", mark(tail), value)
        return f"({self._rules.add('pair', pair)})*"

    def _object(self, schema: Schema, node: Mapping[str, Any]) -> str:
        required = set(node.get("required", ()))
        pairs = []
        for key, value in node.get("properties", {}).items():
            if self._keys.names.fullmatch(key) and not keyword.iskeyword(key):
                pairs.append((self._pair(schema, key, value), key in required))
            elif key in required:
                raise SchemaError(f".properties.{key}", "this model's call format can't carry this name")
        return in_order(self._rules, pairs, self._rules.marks.lark(self._keys.comma)) or '""'

    def _pair(self, schema: Schema, key: str, value: Node) -> str:
        node, path = schema.resolve(value), f".properties.{key}"
        types = types_of(schema, node)
        if self._keys.strings == "json" or (types and "string" not in types):
            text = self._json(schema, value)
        elif isinstance(node, dict) and types == {"string"}:
            text = self._closed(bare(node, self._keys.after.strip(), trimmed=self._keys.trimmed, path=path))
        elif node is True or node == {}:
            text = self._closed(bare({}, self._keys.after.strip(), trimmed=False))
        elif types and self._keys.strings == "bare":
            text = self._json(schema, value)
        else:
            raise SchemaError(path, "say its one type; this model's call format writes strings without quotes")
        return self._rules.add("pair", join(self._before(key), text))

    def _json(self, schema: Schema, value: Node) -> str:
        name = self._rules.add("json", f"%json {schema.text(value, self._keys.json)}")
        return join(name, self._rules.marks.lark(self._keys.after))


def object_shapes(schema: Schema, node: Node, path: str = "") -> list[dict[str, Any]]:
    """The plain objects that `node` allows, one of which is to be written. Raises `SchemaError` where it is not made up
    of such."""
    found = schema.resolve(node)
    if not isinstance(found, dict) or found.get("type", "object") not in ("object", ["object"]):
        raise SchemaError(path, "it must be an object")
    for key in ("anyOf", "oneOf"):
        if key in found and not found.keys() - {key, "type"}:
            ways = [object_shapes(schema, sub, f"{path}.{key}[{n}]") for n, sub in enumerate(found[key])]
            return [shape for way in ways for shape in way]
    for key in found:
        if key not in _OF_SHAPES:
            raise SchemaError(f"{path}.{key}", "this model's call format has no place for it here")
    if missing := set(found.get("required", ())) - found.get("properties", {}).keys():
        raise SchemaError(f"{path}.required", f"{min(missing)} is not among its properties")
    return [found]


def in_order(rules: Rules, pairs: list[tuple[str, bool]], comma: str) -> str:
    """Expressions in a row, those not required left out or not, `comma` between any two."""
    if not comma:
        return join(*(pair if required else f"{pair}?" for pair, required in pairs))
    rest, first = "", ""
    for pair, required in reversed(pairs):
        here = join(pair, rest)
        first = here if required else f"({here} | {first})" if first else f"({here})?"
        rest = join(comma, pair, rest) if required else join(f"({comma} {pair})?", rest)
        rest, first = rules.add("rest", rest), rules.add("first", first)
    return first


def types_of(schema: Schema, node: Node) -> frozenset[str]:
    """The JSON types that a part of `schema` allows, as the reader of calls sees them; empty: any."""
    return coerce.types(coerce.properties({"properties": {"x": node}, "$defs": schema.defs})["x"])
