"""Paths into JSON values and the comparing operators of the case files."""

import json
import re
from collections.abc import Callable
from typing import Any

MISSING = object()
_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d+|\*)\]")


def get(value: Any, path: str) -> Any:
    """The value at `path` (dots, `[i]`, `[-1]`, `[*]`), or MISSING; `[*]` makes a flat list of what is there."""
    for place, match in enumerate(steps := list(_STEP.finditer(path))):
        key, index = match.groups()
        if index == "*":
            rest = path[steps[place].end() :].lstrip(".")
            return _each(value, rest)
        value = _member(value, key) if key else _item(value, int(index))
    return value


def _member(value: Any, key: str) -> Any:
    return value.get(key, MISSING) if isinstance(value, dict) else MISSING


def _item(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, list) and -len(value) <= index < len(value) else MISSING


def _each(value: Any, rest: str) -> list[Any]:
    found = [get(item, rest) if rest else item for item in value] if isinstance(value, list) else []
    flat = []
    for item in found:
        flat.extend(item if "[*]" in rest and isinstance(item, list) else [item])
    return [item for item in flat if item is not MISSING]


def same(a: Any, b: Any) -> bool:
    """Equality of JSON values: booleans are no numbers."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def kind(value: Any) -> str:
    """The JSON name of a value's type."""
    kinds = ((bool, "bool"), (str, "string"), (int | float, "number"), (list, "array"), (dict, "object"))
    return next((name for of, name in kinds if isinstance(value, of)), "null")


def _ordered(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda a, b: kind(a) == kind(b) and kind(a) in ("number", "string") and test(a, b)


def _size(test: Callable[[int, int], bool]) -> Callable[[Any, Any], bool]:
    return lambda a, b: isinstance(a, str | list | dict) and test(len(a), b)


def _json_eq(a: Any, b: Any) -> bool:
    try:
        return same(json.loads(a), b)
    except (TypeError, ValueError):
        return False


def _contains(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return any(same(item, b) for item in a)
    return isinstance(a, str) and str(b) in a


def _match(a: Any, b: Any) -> bool:
    return isinstance(a, str) and re.search(b, a) is not None


OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": same,
    "ne": lambda a, b: not same(a, b),
    "in": lambda a, b: any(same(a, item) for item in b),
    "not_in": lambda a, b: not any(same(a, item) for item in b),
    "gt": _ordered(lambda a, b: a > b),
    "ge": _ordered(lambda a, b: a >= b),
    "lt": _ordered(lambda a, b: a < b),
    "le": _ordered(lambda a, b: a <= b),
    "is": lambda a, b: kind(a) == b,
    "match": _match,
    "not_match": lambda a, b: not _match(a, b),
    "contains": _contains,
    "not_contains": lambda a, b: not _contains(a, b),
    "startswith": lambda a, b: isinstance(a, str) and a.startswith(b),
    "len_eq": _size(lambda a, b: a == b),
    "len_ge": _size(lambda a, b: a >= b),
    "has_key": lambda a, b: isinstance(a, dict) and b in a,
    "json_eq": _json_eq,
}


def holds(op: str, actual: Any, value: Any) -> bool:
    """Whether `actual` fits; MISSING reads as null, but for `exists` and `absent`.

    Raises KeyError on an unknown operator.
    """
    if op in ("exists", "absent"):
        return (actual is not MISSING) == (op == "exists")
    return OPERATORS[op](None if actual is MISSING else actual, value)
