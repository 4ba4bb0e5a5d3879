"""Schemas: what is enforced, against an independent validator; and what is refused, by name."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from grammar_walks import Walk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memra_mlx.prompt.grammar_keywords import SchemaError
from memra_mlx.prompt.grammar_marks import Marks
from memra_mlx.prompt.grammar_rules import Rules
from memra_mlx.prompt.grammar_schema import COMPACT, checked

JUDGE = jsonschema.Draft202012Validator
FORMATS = jsonschema.FormatChecker(("date", "uuid", "ipv4", "email"))
WORDS = {"type": "string", "maxLength": 6}
KINDS: dict[str, Any] = {
    "enum": {"enum": ["a", 'b"\\', 3, None, True, [1], {"x": 2}, "http://x // y"]},
    "const": {"type": "object", "properties": {"k": {"const": "v"}, "n": {"const": {"a": [1]}}},
              "required": ["k", "n"]},
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}, WORDS]},
    "oneOf": {"oneOf": [
        {"type": "object", "properties": {"is": {"const": kind}, kind: {"type": "integer"}}, "required": ["is", kind]}
        for kind in ("cat", "dog")
    ]},
    "allOf": {"allOf": [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"type": "object", "properties": {"b": WORDS}, "required": ["b"]},
    ], "additionalProperties": True},
    "ref": {
        "type": "object", "properties": {"p": {"$ref": "#/$defs/P"}, "q": {"$ref": "#/$defs/a~1b%20c"}},
        "required": ["p", "q"], "$defs": {"P": {"enum": ["x", "y"]}, "a/b c": {"type": "integer"}},
    },
    "definitions": {"$ref": "#/definitions/D", "definitions": {"D": {"type": "array", "items": WORDS, "maxItems": 2}}},
    "recursion": {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["v", "next"], "additionalProperties": False,
    },
    "tree": {
        "$ref": "#/$defs/T",
        "$defs": {"T": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/T"},
                                                                  "maxItems": 2}}, "required": ["kids"]}},
    },
    "pattern": {"type": "string", "pattern": "^(ab|\\d{2,3})[x-z]*$"},
    "searched pattern": {"type": "string", "pattern": "[0-9]", "maxLength": 8},
    "date": {"type": "string", "format": "date"},
    "date-time": {"type": "string", "format": "date-time"},
    "time": {"type": "string", "format": "time"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "email": {"type": "string", "format": "email"},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 5},
    "integers": {"type": "integer", "minimum": -7, "exclusiveMaximum": 120},
    "numbers": {"type": "number", "exclusiveMinimum": 0.5, "maximum": 3},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
    "arrays": {"type": "array", "items": {"type": ["integer", "null"]}, "minItems": 2, "maxItems": 4},
    "tuples": {"type": "array", "prefixItems": [{"type": "integer"}, WORDS], "items": {"type": "boolean"},
               "maxItems": 4},
    "maps": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    "pattern maps": {"type": "object", "patternProperties": {"^x[0-9]$": WORDS}, "additionalProperties": False},
    "closed": {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
    "open": {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": WORDS},
    "required elsewhere": {"type": "object", "properties": {"a": WORDS}, "required": ["b"]},
    "types": {"type": ["object", "string", "null"], "maxLength": 4, "properties": {"z": {"type": "boolean"}}},
    "annotations": {"type": "boolean", "title": "t", "description": "d", "default": 5, "nullable": True, "x-y": {}},
}  # fmt: skip


def grammar(schema: Any) -> str:
    found = checked(json.dumps(schema))
    return Rules(Marks({}, frozenset())).text(f"%json {found.text(found.root, COMPACT)}")


def drawn(schema: Any, seed: int) -> Any:
    return json.loads(Walk(grammar(schema), seed).run())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_allowed_is_valid(kind: str) -> None:
    for seed in range(8):
        value = drawn(KINDS[kind], seed)
        JUDGE(KINDS[kind], format_checker=FORMATS).validate(value)


whole = st.integers(-(1 << 53), 1 << 53)
names = st.sampled_from(["a", "b", "long name", 'q"', "é", "$x"])
leaves = st.one_of(
    st.just({"type": "boolean"}), st.just({"type": "null"}),
    st.builds(lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
              st.integers(-1000, 1000), st.integers(0, 300)),
    st.builds(lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size},
              st.integers(0, 3), st.integers(0, 5)),
    st.builds(lambda values: {"enum": values},
              st.lists(st.one_of(st.text(max_size=5), whole, st.booleans()), min_size=1, max_size=4)),
    st.builds(lambda value: {"const": value},
              st.one_of(st.text(max_size=4), st.none(), st.lists(whole, max_size=2))),
    st.sampled_from([{"type": "string", "pattern": p} for p in ("^[a-f]{1,4}$", "^x?y+$", "^(on|off)$")]),
)  # fmt: skip


def _object(parts: dict[str, Any], required: set[str], closed: bool | None) -> dict[str, Any]:
    schema = {"type": "object", "properties": parts, "required": sorted(required & parts.keys())}
    return schema if closed is None else {**schema, "additionalProperties": not closed, "maxProperties": 20}


schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda one, least: {"type": "array", "items": one, "minItems": least, "maxItems": least + 2},
                  inner, st.integers(0, 2)),
        st.builds(_object, st.dictionaries(names, inner, max_size=3), st.sets(names), st.sampled_from([None, True])),
        st.builds(lambda choices: {"anyOf": choices}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=6,
)  # fmt: skip


def check(schema: dict[str, Any], seed: int) -> None:
    JUDGE(schema).validate(drawn(schema, seed))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas, st.integers(0, 10_000))
def test_any_schema_holds(schema: dict[str, Any], seed: int) -> None:
    check(schema, seed)


@pytest.mark.nightly
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas, st.integers(0, 1 << 30))
def test_very_many_schemas_hold(schema: dict[str, Any], seed: int) -> None:
    check(schema, seed)


DEEP: dict[str, Any] = {"type": "integer"}
for _ in range(60):
    DEEP = {"type": "array", "items": DEEP}
TWICE = {f"d{n}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/d{n - 1}"} for k in "lr"}, "required": ["l"]}
         for n in range(1, 40)}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "objekt"}, ".type"),
        ({"type": "object", "properties": []}, ".properties"),
        ({"type": "object", "properties": {"a": {"items": {"not": {}}}}}, ".properties.a.items.not"),
        ({"uniqueItems": True}, ".uniqueItems"),
        ({"if": {}, "then": {}}, ".if"),
        ({"propertyNames": {"pattern": "a"}}, ".propertyNames"),
        ({"$ref": "#/$defs/missing"}, ".$ref"),
        ({"$ref": "http://example.com/x"}, ".$ref"),
        ({"type": "string", "pattern": "^(?!x).*$"}, ".pattern"),
        ({"anyOf": [{"type": "string", "pattern": "("}]}, ".anyOf[0].pattern"),
        ({"type": "string", "format": "json-pointer"}, ".format"),
        ({"oneOf": [WORDS, {"type": "string"}]}, ".oneOf"),
        ({"type": "object", "properties": {"a": {"oneOf": [WORDS, WORDS]}}}, ".properties.a.oneOf"),
        ({"enum": []}, ".enum"),
        ({"enum": [9007199254740993]}, ".enum"),
        ({"minimum": "3"}, ".minimum"),
        ({"type": "object", "minProperties": 2}, ".minProperties"),
        ({"type": "string", "minLength": 4, "maxLength": 2}, ".minLength"),
        ({"multipleOf": 1000003}, ".multipleOf"),
        ({"maxLength": 10**9}, ".maxLength"),
        ({"enum": list(range(20_000))}, ".enum"),
        ({"type": "object", "properties": {f"p{n}": {} for n in range(3000)}}, ".properties.p1999"),
        ({"$ref": "#"}, ""),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, ""),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, ""),
        (False, ""),
        ([], ""),
        (DEEP, ".items" * 41),
    ],
)
def test_refused(schema: Any, path: str) -> None:
    with pytest.raises(SchemaError) as refused:
        checked(json.dumps(schema))
    assert refused.value.path == path
    assert refused.value.message


def test_large_but_honest_schemas_are_served() -> None:
    Walk(grammar({"$defs": {"d0": {"type": "integer"}, **TWICE}, "$ref": "#/$defs/d39"}), 1)
    Walk(grammar({"enum": [f"value {n}" for n in range(3000)]}), 1).run()
    Walk(grammar({"type": "array", "items": WORDS, "maxItems": 10**6}), 1)
    Walk(grammar({"type": "object", "properties": {f"p{n}": WORDS for n in range(300)}}), 1).allowed()


def test_keywords_that_constrain_nothing_are_let_through() -> None:
    idle = {"type": "array", "uniqueItems": False, "items": {"type": "object", "propertyNames": {"type": "string"}}}
    assert checked(json.dumps(idle)).root == {"type": "array", "items": {"type": "object"}}


def test_listed_properties_are_all_there_are_unless_the_schema_says_so() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert checked(json.dumps(inner)).root == {**inner, "additionalProperties": False}
    joined = {"allOf": [inner, {"type": "object", "properties": {"b": {"properties": {"c": {}}}}}]}
    assert checked(json.dumps(joined)).root == joined
    assert checked(json.dumps({**inner, "additionalProperties": True})).root == {**inner, "additionalProperties": True}
    ref = {"$defs": {"a": inner}, "properties": {"x": {"$ref": "#/$defs/a", "required": ["q"]}}}
    assert checked(json.dumps(ref)).defs == {"d0": inner}


def test_json_is_compact() -> None:
    text = Walk(grammar(KINDS["arrays"]), 5).run()
    assert b" " not in text
    assert b"\n" not in text
