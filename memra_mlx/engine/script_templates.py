"""Chat templates of the kinds that real models come with, for scripted engines: one ChatML body, and what varies.

Each kind is strict about one thing, as some published template is, and says so by `raise_exception`.
"""

from __future__ import annotations

from typing import Literal

ToolFormat = Literal["hermes", "xml-function"]

_TEXT = (
    "{%- macro text(c) -%}{%- if c is string -%}{{ c }}{%- elif c -%}"
    "{%- for p in c -%}{{ p.text }}{%- endfor -%}{%- endif -%}{%- endmacro -%}"
)

_RULES = {
    "chatml": "",
    "think-open": "",
    "system-first-only": (
        "{%- for m in messages -%}"
        "{%- if m.role == 'system' and not loop.first -%}"
        "{{ raise_exception('System message must be at the beginning.') }}"
        "{%- elif m.role not in ('system', 'user', 'assistant', 'tool') -%}"
        "{{ raise_exception('Unexpected message role.') }}{%- endif -%}{%- endfor -%}"
    ),
    "alternating-only": (
        "{%- set ns = namespace(last='assistant') -%}"
        "{%- for m in messages -%}{%- if not (loop.first and m.role == 'system') -%}"
        "{%- set side = 'assistant' if m.role == 'assistant' else 'user' -%}"
        "{%- if side == ns.last -%}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif -%}"
        "{%- set ns.last = side -%}{%- endif -%}{%- endfor -%}"
    ),
    "string-content-only": (
        "{%- for m in messages -%}{%- if m.content is not string and m.content is not none -%}"
        "{{ raise_exception('Message content must be a string.') }}{%- endif -%}{%- endfor -%}"
    ),
    "args-as-text": (
        "{%- for m in messages -%}{%- for c in m.tool_calls or [] -%}"
        "{%- if c.function.arguments is not string -%}"
        "{{ raise_exception('Tool call arguments must be a string.') }}{%- endif -%}{%- endfor -%}{%- endfor -%}"
    ),
    "args-as-map": (
        "{%- for m in messages -%}{%- for c in m.tool_calls or [] -%}"
        "{%- if c.function.arguments is not mapping -%}"
        "{{ raise_exception('Tool call arguments must be a mapping.') }}{%- endif -%}{%- endfor -%}{%- endfor -%}"
    ),
}

_TOOLS = (
    "{%- if messages and messages[0].role == 'system' -%}"
    "{%- set system = text(messages[0].content) -%}{%- set rest = messages[1:] -%}"
    "{%- else -%}{%- set system = '' -%}{%- set rest = messages -%}{%- endif -%}"
    "{%- if system or tools -%}{{ '<|im_start|>system\\n' + system }}"
    "{%- if tools -%}{{ '\\n\\n# Tools\\n' }}"
    "{%- for tool in tools -%}{{ tool | tojson }}{{ '\\n' }}{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\\n' }}{%- endif -%}"
)

_CALLS: dict[ToolFormat, str] = {
    "hermes": (
        '{{ \'<tool_call>\\n{"name": "\' + tool_call.name + \'", "arguments": \' }}'
        "{%- if tool_call.arguments is string -%}{{ tool_call.arguments }}"
        "{%- else -%}{{ tool_call.arguments | tojson }}{%- endif -%}{{ '}\\n</tool_call>' }}"
    ),
    "xml-function": (
        "{{ '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}"
        "{%- if tool_call.arguments is mapping -%}{%- for key, value in tool_call.arguments.items() -%}"
        "{{ '<parameter=' + key + '>\\n' }}"
        "{%- if value is string -%}{{ value }}{%- else -%}{{ value | tojson }}{%- endif -%}"
        "{{ '\\n</parameter>\\n' }}{%- endfor -%}{%- else -%}{{ tool_call.arguments + '\\n' }}{%- endif -%}"
        "{{ '</function>\\n</tool_call>' }}"
    ),
}

_MESSAGES = (
    "{%- for m in rest -%}{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\\n' }}"
    "{%- if m.role == 'tool' -%}{{ '<tool_response>\\n' + text(m.content) + '\\n</tool_response>' }}"
    "{%- else -%}"
    "{%- if m.reasoning_content -%}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif -%}"
    "{{ text(m.content) }}"
    "{%- for c in m.tool_calls or [] -%}{%- set tool_call = c.function -%}"
    "{%- if text(m.content) or not loop.first -%}{{ '\\n' }}{%- endif -%}CALL{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\\n' }}{%- endfor -%}"
)

_OPEN = (
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "OPENED{%- endif -%}{%- endif -%}"
)

KINDS = tuple(_RULES)


def chat_template(kind: str, tool_format: ToolFormat) -> str:
    """The Jinja text of one of `KINDS`, with calls in `tool_format`."""
    opened = "{%- else -%}{{ '<think>\\n' }}" if kind == "think-open" else ""
    messages = _MESSAGES.replace("CALL", _CALLS[tool_format])
    return _TEXT + _RULES[kind] + _TOOLS + messages + _OPEN.replace("OPENED", opened)
