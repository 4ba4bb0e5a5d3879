"""Small chat templates in the style of every format of calls that mlx-lm parses, with the turn marks it comes with."""

from __future__ import annotations

from dataclasses import dataclass

_TEMPLATE = (
    "{%- if tools -%}{{ 'OPENsystemSEP# Tools\\n' }}{%- for t in tools -%}{{ t | tojson }}{%- endfor -%}{{ 'CLOSE' }}"
    "{%- endif -%}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'assistant' -%}{{ 'OPENassistantSEP' + (m.content or '') }}"
    "{%- if m.tool_calls -%}{{ 'BLOCK_START' }}"
    "{%- for c in m.tool_calls -%}{%- set tool_call = c.function -%}{%- set i = loop.index0 -%}CALL{%- endfor -%}"
    "{{ 'BLOCK_END' }}{%- endif -%}"
    "{%- if not (MERGE and m.tool_calls) -%}{{ 'CLOSE' }}{%- endif -%}"
    "{%- elif m.role == 'tool' -%}RESULT"
    "{%- else -%}{{ 'OPEN' + m.role + 'SEP' + m.content + 'CLOSE' }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt and not (MERGE and messages[-1].role == 'tool') -%}"
    "{{ 'OPENassistantSEP' }}{%- endif -%}"
)
_RESULT = "{{ 'OPENtoolSEP' + m.content + 'CLOSE' }}"
_LOOP = "{%- for k, v in tool_call.arguments.items() -%}"
_TEXT = "(v if v is string else v | tojson)"


@dataclass(frozen=True)
class Style:
    """A format. `module` is mlx-lm's parser, `call` renders one call, `start` and `end` stand around those of a turn;
    with `merge` a result goes on in the turn that called."""

    module: str
    call: str
    start: str = ""
    end: str = ""
    opening: str = "<|im_start|>"
    separator: str = "\\n"
    close: str = "<|im_end|>\\n"
    result: str = _RESULT
    merge: bool = False

    def template(self) -> str:
        """The Jinja text."""
        text = _TEMPLATE.replace("CALL", self.call).replace("RESULT", self.result)
        text = text.replace("BLOCK_START", self.start).replace("BLOCK_END", self.end)
        text = text.replace("OPEN", self.opening).replace("SEP", self.separator).replace("CLOSE", self.close)
        return text.replace("MERGE", "true" if self.merge else "false")


_JSON_CALL = (
    '{{ \'\\n<tool_call>\\n{"name": "\' + tool_call.name + \'", "arguments": \' + (tool_call.arguments | tojson)'
    " + '}\\n</tool_call>' }}"
)
_ARG_CALL = (
    "{{ 'P<tool_call>' + tool_call.name }}" + _LOOP + "{{ '<P_arg_key>' + k + '</P_arg_key>\\n<P_arg_value>' + "
    f"{_TEXT} + '</P_arg_value>\\n' }}}}{{%- endfor -%}}{{{{ 'P</tool_call>' }}}}"
)
_QUOTED = "('<|\"|>' + v + '<|\"|>' if v is string else v | tojson)"
_COMMA = "{%- if not loop.last -%}{{ ',' }}{%- endif -%}{%- endfor -%}"

STYLES = (
    Style("json_tools", _JSON_CALL),
    Style(
        "qwen3_coder",
        "{{ '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}" + _LOOP + "{{ '<parameter=' + k + '>\\n' + "
        f"{_TEXT} + '\\n</parameter>\\n' }}}}{{%- endfor -%}}{{{{ '</function>\\n</tool_call>' }}}}",
    ),
    Style("glm47", _ARG_CALL.replace("P<", "\\n<").replace("P</", "</").replace("P_", "")),
    Style(
        "longcat",
        _ARG_CALL.replace("P</", "</longcat_").replace("P<", "<longcat_").replace("P_", "longcat_"),
    ),
    Style(
        "minimax_m2",
        "{{ '<invoke name=\"' + tool_call.name + '\">\\n' }}" + _LOOP + "{{ '<parameter name=\"' + k + '\">' + "
        f"{_TEXT} + '</parameter>\\n' }}}}{{%- endfor -%}}{{{{ '</invoke>\\n' }}}}",
        "\\n<minimax:tool_call>\\n",
        "</minimax:tool_call>",
        "]~b]",
        "\\n",
        "[e~[\\n",
    ),
    Style(
        "minicpm5",
        "{{ '<function name=\"' + tool_call.name + '\">' }}" + _LOOP + "{{ '<param name=\"' + k + '\">' + "
        f"{_TEXT} + '</param>' }}}}{{%- endfor -%}}{{{{ '</function>' }}}}",
    ),
    Style(
        "muse_spark",
        "{{ '<atem:invoke name=\"' + tool_call.name + '\">' }}" + _LOOP + "{{ '<atem:parameter name=\"' + k + '\">' + "
        f"{_TEXT} + '</atem:parameter>' }}}}{{%- endfor -%}}{{{{ '</atem:invoke>' }}}}",
        "<atem:function_calls>",
        "</atem:function_calls>",
    ),
    Style(
        "kimi_k2",
        "{{ '<|tool_call_begin|>functions.' + tool_call.name + ':' + i | string + '<|tool_call_argument_begin|>'"
        " + tool_call.arguments | tojson + '<|tool_call_end|>' }}",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|im_",
        "<|im_middle|>",
    ),
    Style(
        "pythonic",
        "{{ tool_call.name + '(' }}" + _LOOP + "{{ k + '=' + v | tojson }}" + _COMMA + "{{ ')' }}",
        "<|tool_call_start|>[",
        "]<|tool_call_end|>",
    ),
    Style(
        "mistral",
        "{{ '[TOOL_CALLS]' + tool_call.name + '[ARGS]' + tool_call.arguments | tojson }}",
        result="{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}",
        close="<|im_end|>",
    ),
    Style(
        "gemma4",
        "{{ '<|tool_call>call:' + tool_call.name + '{' }}" + _LOOP + "{{ k + ':' + " + _QUOTED + " }}" + _COMMA
        + "{{ '}<tool_call|>' }}",
        opening="<start_of_turn>",
        close="<end_of_turn>\\n",
        result="{{ '<|tool_response>response:' + m.name + '{value:<|\"|>' + m.content + '<|\"|>}<tool_response|>' }}",
        merge=True,
    ),
    Style(
        "function_gemma",
        "{{ '<start_function_call>call:' + tool_call.name + '{' }}" + _LOOP
        + "{{ k + ':' + ('<escape>' + v + '<escape>' if v is string else v | tojson) }}" + _COMMA
        + "{{ '}<end_function_call>' }}",
        opening="<start_of_turn>",
        close="<end_of_turn>\\n",
    ),
)  # fmt: skip
