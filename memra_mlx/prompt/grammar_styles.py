"""Which call format a model has, by the style of mlx-lm's parser and what its vocabulary and template show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from memra_mlx.prompt.grammar_calls import JSON_FORMATS, CallFormat, named
from memra_mlx.prompt.grammar_gemma import Gemma
from memra_mlx.prompt.grammar_keyed import Keys
from memra_mlx.prompt.grammar_marks import Marks
from memra_mlx.prompt.grammar_schema import PYTHON

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_XML = Keys("\n<function=NAME>\n", "</function>\n", "<parameter=KEY>\n", "\n</parameter>\n")
_ARGS = Keys("NAME", "", "<arg_key>KEY</arg_key><arg_value>", "</arg_value>", trimmed=True)
_ARGS_ON_LINES = Keys("NAME\n", "", "<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>\n", trimmed=True)
_INVOKE = Keys(
    '<invoke name="NAME">\n',
    "</invoke>\n",
    '<parameter name="KEY">',
    "</parameter>\n",
    strings="only_bare",
    trimmed=True,
)
_PARAM = Keys('"NAME">', "", '<param name="KEY">', "</param>", strings="only_bare", trimmed=True)
_ATEM = Keys(
    '<atem:invoke name="NAME">\n',
    "</atem:invoke>\n",
    '<atem:parameter name="KEY">',
    "</atem:parameter>\n",
    strings="json",
)
_PYTHON = Keys("NAME(", ")", "KEY=", "", comma=", ", strings="json", names=_WORD, json=PYTHON)
_GEMMA = Gemma('<|"|>', re.compile(r"[\w-]+"), nested=True)
_FUNCTION_GEMMA = Gemma("<escape>", re.compile(r"\w+"), nested=False, text="/[^}]*/")

FORMATS: Mapping[str, CallFormat] = {
    **JSON_FORMATS,
    "qwen3_coder": CallFormat("<tool_call>", "</tool_call>", _XML.write, gap="\n"),
    "glm47": CallFormat("<tool_call>", "</tool_call>", _ARGS.write),
    "glm47_lines": CallFormat("<tool_call>", "</tool_call>", _ARGS_ON_LINES.write, gap="\n"),
    # its reader takes calls without arguments in this form alone
    "longcat": CallFormat("<longcat_tool_call>", "</longcat_tool_call>", named, "\n", "\n", gap="\n"),
    "minimax_m2": CallFormat("<minimax:tool_call>", "</minimax:tool_call>", _INVOKE.write, "\n", between=""),
    "minicpm5": CallFormat("<function name=", "</function>", _PARAM.write),
    "muse_spark": CallFormat("<atem:function_calls>", "</atem:function_calls>", _ATEM.write, "\n", between=""),
    "pythonic": CallFormat("<|tool_call_start|>", "<|tool_call_end|>", _PYTHON.write, "[", "]", between=", "),
    "gemma4": CallFormat("<|tool_call>", "<tool_call|>", _GEMMA.write),
    "function_gemma": CallFormat("<start_function_call>", "<end_function_call>", _FUNCTION_GEMMA.write),
}


def call_format(tokenizer: TokenizerWrapper, style: str | None, marks: Marks) -> CallFormat | None:
    """The format, or None where calls can't be constrained."""
    if style is None or tokenizer.response_transitions:
        return None
    template = str(tokenizer.chat_template or "")
    if style == "mistral" and "[ARGS]" not in marks.ids and "[ARGS]" not in template:
        return FORMATS["mistral_list"]
    if style in ("glm47", "laguna"):
        return FORMATS["glm47_lines" if re.search(r"</arg_key>(\\n|\n)", template) else "glm47"]
    return FORMATS.get(style)
