"""Which tokens an answer consists of, when it did not end with the last one that was generated."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from memra_mlx.prompt.detokenizer import Vocabulary

Encode = Callable[[str], list[int]]

# Calls that are parsed as they grow are over before their block is: what the block may lack then.
_CLOSINGS = {"json_tools": "}\n</tool_call>", "qwen3_coder": "\n</function>\n</tool_call>"}
_START, _END = "<tool_call>", "</tool_call>"


def until(tokens: Sequence[int], offset: int, vocabulary: Vocabulary, encode: Encode) -> list[int]:
    """The tokens of the first `offset` characters: those wholly within, then what is left of the next one anew."""
    detokenizer = vocabulary.detokenizer()
    seen = 0
    for n, token in enumerate(tokens):
        text = detokenizer.add(token)
        if seen + len(text) > offset:
            return [*_unbroken(tokens[:n], vocabulary), *encode(text[: offset - seen])]
        seen += len(text)
    return list(tokens)


def closed(tokens: list[int], style: str | None, vocabulary: Vocabulary, encode: Encode) -> list[int] | None:
    """The tokens of an answer that calls, its last block closed; None where that can't be done."""
    if style not in _CLOSINGS:
        return tokens
    text = b"".join(map(vocabulary.token_bytes, tokens)).decode("utf-8", "replace")
    body = text.rpartition(_START)[2]
    if _END in body:
        return tokens
    closing = _CLOSINGS[style]
    rest = next((closing[at:] for at in range(len(closing)) if _is_block(body + closing[at:], style)), None)
    return None if rest is None else [*tokens, *encode(rest)]


def _unbroken(tokens: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """Without the last tokens that hold a part of a character."""
    kept = list(tokens)
    while kept:
        try:
            b"".join(map(vocabulary.token_bytes, kept[-8:])).decode().encode()
        except UnicodeDecodeError as fault:
            if fault.reason != "unexpected end of data":
                return kept
            kept.pop()
        else:
            return kept
    return kept


def _is_block(body: str, style: str) -> bool:
    if body.count(_END) != 1 or not body.endswith(_END):
        return False
    inner = body.removesuffix(_END)
    if style == "qwen3_coder":
        return inner.count("</function>") == 1 and inner.rstrip().endswith("</function>")
    try:
        return isinstance(json.loads(inner, strict=False), dict)
    except (ValueError, RecursionError):
        return False
