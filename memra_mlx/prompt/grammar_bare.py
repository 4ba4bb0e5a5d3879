"""Strings as they stand in tags, without quotes or escapes: terminals from a schema's keywords."""

from __future__ import annotations

import re
from typing import Any

from memra_mlx.prompt.grammar_keywords import SchemaError
from memra_mlx.prompt.grammar_lark import slashes
from memra_mlx.prompt.grammar_marks import ANY, join, literal

_DATE = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9])"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9a-f]"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "uuid": f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "email": r"[a-z0-9]+(?:[._-][a-z0-9]+)*@[a-z0-9]+(?:\.[a-z0-9]+)*\.[a-z]{2,6}",
}
_EDGES = r"& ~/\s(?s:.)*/ & ~/(?s:.)*\s/"


def bare(node: dict[str, Any], forbidden: str, *, trimmed: bool, path: str = "") -> str:
    """The body of a terminal for the strings that `node` allows and that do not hold the text `forbidden`. `trimmed`:
    the reader drops white space at the edges. Raises `SchemaError`."""
    parts = [*_parts(node, path)]
    return enclosed(parts or [ANY], forbidden, trimmed=trimmed and bool(parts))


def enclosed(parts: list[str], forbidden: str, *, trimmed: bool) -> str:
    """What all of `parts` match, without the text `forbidden` and, if `trimmed`, white space at the edges."""
    outside = f"& ~({ANY} {literal(forbidden)} {ANY})" if forbidden else ""
    return join(" & ".join(parts), outside, _EDGES if trimmed else "")


def _parts(node: dict[str, Any], path: str) -> list[str]:
    parts = []
    for key in ("enum", "const"):
        if key in node:
            values = node[key] if key == "enum" else [node[key]]
            words = [slashes(re.escape(value)) for value in values if isinstance(value, str)]
            parts.append(f"/(?:{'|'.join(words)})/")
    if "minLength" in node or "maxLength" in node:
        parts.append(f"/(?s:.){{{node.get('minLength', 0)},{node.get('maxLength', '')}}}/")
    if "pattern" in node:
        parts.append(f"/{slashes(_whole(node['pattern'], path))}/")
    if "format" in node:
        known = _FORMATS.get(node["format"])
        if known is None:
            raise SchemaError(f"{path}.format", f"{node['format']} can't be enforced in this model's call format")
        parts.append(f"/{known}/")
    return parts


def _whole(pattern: str, path: str) -> str:
    """A pattern that is looked for → one that the whole text matches."""
    begins, ends = pattern.startswith("^"), re.search(r"(?<!\\)(?:\\\\)*\$$", pattern) is not None
    core = pattern[int(begins) : len(pattern) - int(ends)]
    if ((begins or ends) and "|" in core) or re.search(r"(?<![\\\[])[\^$]|\\[bBAZz]", core):
        raise SchemaError(f"{path}.pattern", "anchors inside of it can't be enforced in this model's call format")
    return f"{'' if begins else '(?s:.)*'}(?:{core}){'' if ends else '(?s:.)*'}"
