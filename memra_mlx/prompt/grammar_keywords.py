"""The keywords of a JSON schema: which constrain, which can't be enforced, and what their values may be."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from memra_mlx.prompt.grammar_finite import TYPES

FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)  # fmt: skip
_OTHER_FORMATS = frozenset(
    ("idn-email", "idn-hostname", "uri-reference", "uri-template", "iri", "iri-reference", "json-pointer",
     "relative-json-pointer", "regex")
)  # fmt: skip
REFUSED = frozenset(
    ("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties",
     "unevaluatedItems", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames", "$dynamicRef",
     "$recursiveRef")
)  # fmt: skip
# Values with which a refused keyword constrains nothing.
IDLE: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,), "propertyNames": ({}, True, {"type": "string"}), "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}), "dependentRequired": ({},), "dependentSchemas": ({},), "dependencies": ({},),
}  # fmt: skip
EXACT = 1 << 53
_COUNT, _STEPS, _PATTERN = 1_000_000, 1_000, 4_000


class SchemaError(ValueError):
    """A schema that can't be enforced; `path` leads to the keyword."""

    def __init__(self, path: str, message: str):
        super().__init__(message)
        self.path = path
        self.message = message


def require(condition: bool, at: str, message: str) -> None:
    """Raise `SchemaError` unless `condition`."""
    if not condition:
        raise SchemaError(at, message)


def _check_type(value: Any, at: str) -> None:
    named = value if isinstance(value, list) else [value]
    require(bool(named) and all(name in TYPES for name in named), at, f"it must be one of {', '.join(TYPES)}")


def _check_required(value: Any, at: str) -> None:
    require(isinstance(value, list) and all(isinstance(name, str) for name in value), at, "it must be a list of names")


def _check_pattern(value: Any, at: str) -> None:
    require(isinstance(value, str), at, "it must be text")
    require(len(value) <= _PATTERN, at, f"it is longer than {_PATTERN} characters")


def _check_format(value: Any, at: str) -> None:
    require(isinstance(value, str), at, "it must be text")
    known = ", ".join(sorted(FORMATS))
    require(value not in _OTHER_FORMATS, at, f"{value} can't be enforced; leave it out or use one of {known}")


def _check_count(value: Any, at: str) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    require(whole and value <= _COUNT, at, f"it must be a whole number up to {_COUNT}")


def _check_number(value: Any, at: str) -> None:
    require(isinstance(value, int | float) and not isinstance(value, bool), at, "it must be a number")
    require(abs(value) <= EXACT, at, "it must be between -2^53 and 2^53")


def _check_multiple(value: Any, at: str) -> None:
    _check_number(value, at)
    digits = Decimal(str(value)).normalize().as_tuple().digits
    steps = int("".join(map(str, digits)))
    require(value > 0 and steps <= _STEPS, at, f"it must be above 0, with at most {_STEPS} as its significant digits")


SIMPLE: dict[str, Callable[[Any, str], None]] = {
    "type": _check_type, "required": _check_required, "pattern": _check_pattern, "format": _check_format,
    "multipleOf": _check_multiple,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _check_count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _check_number),
}  # fmt: skip
