"""Which call format a model has, by the style of mlx-lm's parser and what its vocabulary and template show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memra_mlx.prompt.grammar_calls import JSON_FORMATS, CallFormat
from memra_mlx.prompt.grammar_marks import Marks

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


def call_format(tokenizer: TokenizerWrapper, style: str | None, marks: Marks) -> CallFormat | None:
    """The format, or None where calls can't be constrained."""
    if style is None or tokenizer.response_transitions:
        return None
    if style == "mistral" and "[ARGS]" not in marks.ids:
        return JSON_FORMATS["mistral_list"]
    return JSON_FORMATS.get(style)
