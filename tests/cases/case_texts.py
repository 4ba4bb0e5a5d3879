"""Text variables of the case files, and the recipes for bodies that are not JSON."""

import gzip
import json
import re
import struct
import zlib
from collections.abc import Mapping
from typing import Any

PNG_1PX = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_INNERMOST = re.compile(r"\$\{([A-Z][A-Z0-9_]*)(?::([^${}]*))?\}")
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

Variables = Mapping[str, str | int]


def expand(value: Any, variables: Variables) -> Any:
    """Replace the variables in all texts of a JSON value, innermost first; a text that is one number variable as a
    whole becomes that number. Unknown names stay as they are."""
    if isinstance(value, dict):
        return {key: expand(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, variables) for item in value]
    return expand_text(value, variables) if isinstance(value, str) else value


def expand_text(text: str, variables: Variables) -> str | int:
    whole = _INNERMOST.fullmatch(text)
    if whole and not whole[2] and isinstance(variables.get(whole[1]), int):
        return variables[whole[1]]
    while True:
        after = _INNERMOST.sub(lambda match: _replaced(match, variables), text)
        if after == text:
            return text
        text = after


def _replaced(match: re.Match[str], variables: Variables) -> str:
    name, argument = match.groups()
    if name == "LONG" and argument and argument.isdigit():
        return "lorem " * int(argument)
    if name == "REPEAT" and argument and ":" in argument:
        text, _, times = argument.rpartition(":")
        return text * int(times) if times.isdigit() else match[0]
    key = name if argument is None else f"{name}:{argument}"
    return str(variables.get(key, match[0]))


def raw_body(raw: Any) -> bytes:
    """The bytes of a `raw` entry: exact text or a recipe, as the README of the cases lists them."""
    match raw:
        case str():
            return raw.encode()
        case {"hex": digits}:
            return bytes.fromhex(digits)
        case {"repeat": text, "bytes": size}:
            return (text.encode() * size)[:size]
        case {"nest": opening, "depth": depth, "wrap": wrap}:
            closing = opening.translate(str.maketrans("[{", "]}"))[::-1]
            return wrap.replace("%s", opening * depth + closing * depth).encode()
        case {"gzip_of": text}:
            return gzip_recipe(text)
    raise ValueError(f"unknown recipe {raw!r}")


def gzip_recipe(text: str) -> bytes:
    """A gzip file of `N MiB of spaces`, or of the text itself. Big ones are made of one repeated deflate block."""
    match = re.fullmatch(r"(\d+) (KiB|MiB|GiB) of spaces", text)
    if not match:
        return gzip.compress(text.encode())
    size = int(match[1]) * _UNITS[match[2]]
    block = b" " * min(size, 1 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    crc = 0
    for _ in range(size // len(block)):
        crc = zlib.crc32(block, crc)
    end = struct.pack("<II", crc, size & 0xFFFFFFFF)
    return gzip.compress(b"")[:10] + packed * (size // len(block)) + b"\x03\x00" + end


def json_body(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()
