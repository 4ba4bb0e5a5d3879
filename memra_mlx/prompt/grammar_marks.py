"""Control tokens and literals in llguidance's Lark syntax."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


def is_special(content: str, special: bool) -> bool:
    """Whether llguidance treats an added token as one that no text can spell."""
    return special or (content.startswith("<") and content.endswith(">"))


def literal(text: str) -> str:
    """A string literal; nothing for the empty string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") if text else ""


def join(*parts: str) -> str:
    """A sequence of expressions, empty ones left out."""
    return " ".join(part for part in parts if part)


def any_of(choices: Iterable[str]) -> str:
    """One of several expressions."""
    return "(" + " | ".join(choices) + ")"


@dataclass(frozen=True, slots=True)
class Marks:
    """The control tokens of a model by their spelling, and which of them end an answer."""

    ids: Mapping[str, int]
    eos_ids: frozenset[int]

    @classmethod
    def of(cls, tokenizer: TokenizerWrapper) -> Marks:
        """Those of a tokenizer."""
        added = tokenizer.added_tokens_decoder
        ids = {token.content: index for index, token in added.items() if is_special(token.content, token.special)}
        return cls(ids, frozenset(tokenizer.eos_token_ids))

    def lark(self, text: str) -> str:
        """The expression for a text of the model's own format: tokens by id, what lies between as literals."""
        if not self.ids:
            return literal(text)
        cut = re.split("(" + "|".join(re.escape(mark) for mark in sorted(self.ids, key=len, reverse=True)) + ")", text)
        return join(*(f"<[{self.ids[part]}]>" if part in self.ids else literal(part) for part in cut))

    def other(self, *excluded: str) -> str:
        """Any control token but those that end an answer and the `excluded` ones; empty if there is none."""
        left = set(self.ids.values()) - self.eos_ids - {self.ids[mark] for mark in excluded if mark in self.ids}
        return f"<[{','.join(map(str, sorted(left)))}]>" if left else ""


# Text in which no control token can stand: llguidance spells those with bytes that no character has.
ANY = "/(?s:.)*/"


def text_without(*literals: str) -> str:
    """The expression of a terminal: any text that spells none of the literals."""
    spelled = [literal(text) for text in literals if text]
    return join("ANY", *(f"& ~(ANY {text} ANY)" for text in spelled))
