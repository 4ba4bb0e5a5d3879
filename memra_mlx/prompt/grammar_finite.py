"""Whether a schema that refers to itself can be satisfied by a value that ends."""

from __future__ import annotations

from typing import Any

Node = dict[str, Any] | bool

TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")


def is_finite(root: Node, defs: dict[str, Node]) -> bool:
    """Whether some finite value satisfies `root`; `defs` holds what its references name."""
    proved: set[str] = set()
    while True:
        new = {name for name, node in defs.items() if name not in proved and _ends(node, proved)}
        if not new:
            return _ends(root, proved)
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
    named = node.get("type", TYPES)
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
