"""A model's chat template as a function of messages and variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

# Templates are programs: besides their own refusals they fail as Python does.
REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError, AssertionError)


class Template:
    """Renders by the tokenizer's Jinja template, or by the renderer that mlx-lm brings for the model."""

    def __init__(self, tokenizer: TokenizerWrapper):
        self._renderer: Callable[..., str] | None = tokenizer._chat_template
        self._tokenizer = tokenizer._tokenizer

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        *,
        generate: bool = True,
        **variables: Any,
    ) -> str:
        """Rendered text, up to where the assistant's turn begins if `generate`. Raises one of `REFUSALS`."""
        common = {"tools": list(tools) or None, "add_generation_prompt": generate, **variables}
        if self._renderer is not None:
            return self._renderer(list(messages), **common)
        text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, **common)
        assert isinstance(text, str)
        return text
