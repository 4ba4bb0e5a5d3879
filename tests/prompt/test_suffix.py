"""The text behind an answer, for templates of every format of calls."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache

import pytest
from call_templates import STYLES, Style
from prompt_samples import BASH, FIXTURES, PATCH, TEMPLATES, WEATHER, ask, message, model

from memra_mlx.prompt.conversation import turns
from memra_mlx.prompt.suffix import Known
from memra_mlx.prompt.text_model import Prompt, TextModel
from memra_mlx.request import Conversation, Message, Reasoning, Request, Text, Thinking, Tool, ToolCall, ToolResult

TOOLS = (WEATHER, BASH)


@cache
def styled(style: Style) -> TextModel:
    return TextModel.load(FIXTURES / "tiny", chat_template=style.template())


def call(
    arguments: str = '{"town": "Oslo", "days": 3}', name: str = "get_weather", call_id: str = "call_1"
) -> ToolCall:
    return ToolCall(call_id, name, arguments)


def result(text: str = "rain", call_id: str = "call_1") -> Message:
    return Message("tool", (ToolResult(call_id, (Text(text),)),))


def after(own: TextModel, request: Request, answer: Message) -> tuple[str, str, Prompt]:
    """What the template renders for the whole of `request`, and for what lies behind `answer`."""
    assert isinstance(request.input, Conversation)
    spoken, _ = turns(request.input.messages, request.dialect)
    at = next(n for n, turn in enumerate(spoken, 1) if turn == turns([answer], request.dialect)[0][0])
    prompt = own.continued(request, spoken, at, Known([], []))
    assert prompt is not None
    return text_of(own, own.prompt(request).ids), text_of(own, prompt.ids), prompt


def text_of(own: TextModel, ids: list[int]) -> str:
    return str(own._tokenizer.decode(ids))


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.module)
def test_every_format_of_calls_has_an_exact_suffix(style: Style) -> None:
    own = styled(style)
    assert own.tool_style == style.module
    assert own._suffixes.kinds == {"text", "calls"}
    for given in (call(), call('{"days": 2}'), call("{}"), call('{"town": "a\\nb \\"c\\""}')):
        answer = message("assistant", "I look.", given)
        request = ask(message("user", "Weather?"), answer, result(), message("user", "and now?"), tools=TOOLS)
        whole, rest, _ = after(own, request, answer)
        assert whole.endswith(rest)
        assert "rain" in rest
        assert "Oslo" not in rest
        before = whole.removesuffix(rest)
        assert before.endswith(own._suffixes._call_end)
        assert given.name in before


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.module)
def test_text_turns(style: Style) -> None:
    answer = message("assistant", "All is well.")
    whole, rest, _ = after(styled(style), ask(message("user", "hi"), answer, message("user", "go on")), answer)
    assert whole.endswith("All is well." + rest)


@pytest.mark.parametrize("template", [None, *TEMPLATES])
def test_the_other_templates(template: str | None) -> None:
    own = model(template)
    assert "text" in own._suffixes.kinds
    answer = message("assistant", Reasoning("hidden"), "All is well.")
    whole, rest, _ = after(own, ask(message("user", "hi"), answer, message("user", "go on")), answer)
    assert whole.endswith("All is well." + rest)


def test_several_calls_and_results() -> None:
    answer = message("assistant", call(), call('{"command": "ls"}', "bash", "call_2"))
    messages = (message("user", "q"), answer, result("sun", "call_1"), result("a.txt", "call_2"))
    _, rest, _ = after(model(), ask(*messages, tools=TOOLS), answer)
    assert rest.startswith("<|im_end|>\n<|im_start|>user\n<tool_response>\nsun\n</tool_response>")
    assert rest.endswith("a.txt\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


def test_a_custom_tools_input_is_its_text_argument() -> None:
    answer = message("assistant", call("*** Begin Patch", "apply_patch"))
    whole, rest, _ = after(model(), ask(message("user", "q"), answer, result("ok"), tools=(PATCH,)), answer)
    assert whole.endswith("</tool_call>" + rest)


def test_ids_and_ends_follow_the_exact_tokens() -> None:
    own = model()
    request = ask(message("user", "hi"), message("assistant", "All is well."), message("user", "go on"))
    spoken, _ = turns(request.input.messages, "chat")  # type: ignore[union-attr]
    prompt = own.continued(request, spoken, 2, Known([5, 6, 7, 8], [2, 4]))
    assert prompt is not None
    assert prompt.ids[:4] == [5, 6, 7, 8]
    assert text_of(own, prompt.ids[4:]).startswith("<|im_end|>\n<|im_start|>user\ngo on")
    assert prompt.segment_ends == sorted(set(prompt.segment_ends))
    assert prompt.segment_ends[0] == 2
    assert prompt.segment_ends[-1] == len(prompt.ids)
    assert all(text_of(own, [prompt.ids[at]]) == "<|im_start|>" for at in prompt.segment_ends[1:-1])


def test_reasoning_is_still_switched_by_the_request() -> None:
    own = model()
    request = ask(message("user", "hi"), message("assistant", "yes"), message("user", "go on"))
    spoken, _ = turns(request.input.messages, "chat")  # type: ignore[union-attr]
    off = own.continued(replace(request, thinking=Thinking(enabled=False)), spoken, 2, Known())
    assert off is not None
    assert text_of(own, off.ids).endswith("<think>\n\n</think>\n\n")
    opened = model("think-open").continued(request, spoken, 2, Known())
    assert opened is not None
    assert opened.think is not None
    assert opened.think.opened


def test_control_tokens_in_what_follows_stay_text() -> None:
    answer = message("assistant", "yes")
    _, _, prompt = after(model(), ask(message("user", "hi"), answer, message("user", "<|im_end|>x")), answer)
    own = model()
    end = own._tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert prompt.ids.count(end) == 2


def test_an_answer_that_the_client_began_is_not_closed() -> None:
    answer = message("assistant", "yes")
    request = ask(message("user", "hi"), answer, message("user", "go on"), message("assistant", "I beg"))
    _, rest, _ = after(model(), request, answer)
    assert rest.endswith("assistant\nI beg")
    spoken, _ = turns(request.input.messages, "chat")  # type: ignore[union-attr]
    assert model().continued(request, spoken, 4, Known()) is None


def test_what_the_answer_ended_in_is_not_repeated() -> None:
    template = styled(STYLES[0])._tokenizer.chat_template.replace("</tool_call>' }}", "</tool_call><end>' }}")
    own = TextModel.load(FIXTURES / "tiny", chat_template=template)
    request = ask(message("user", "q"), message("assistant", call()), result(), tools=TOOLS)
    spoken, _ = turns(request.input.messages, "chat")  # type: ignore[union-attr]
    said = own._encoder.encode("x</tool_call>\n<end>").ids
    cut = own._encoder.encode("x</tool_call>").ids
    closed, open_ = own.continued(request, spoken, 2, Known(said)), own.continued(request, spoken, 2, Known(cut))
    assert closed is not None
    assert open_ is not None
    assert text_of(own, closed.ids).startswith("x</tool_call>\n<end><|im_end|>")
    assert text_of(own, open_.ids).startswith("x</tool_call><end><|im_end|>")


MERGED = (
    "{%- for t in tools or [] -%}{{ t | tojson }}{%- endfor -%}"
    "{%- for m in messages -%}{{ '[' + m.role + ']' + (m.content or '') }}"
    "{%- if m.tool_calls -%}{%- for c in m.tool_calls -%}{%- set tool_call = c.function -%}"
    "{{ '<tool_call>' + tool_call.name + (tool_call.arguments | tojson) + '</tool_call>' }}{%- endfor -%}"
    "{{ '(' + (m.tool_calls[-1].function.arguments | length | string) + ')' }}{%- endif -%}{%- endfor -%}"
)
HIDING = "{%- for m in messages -%}{{ '[' + m.role + ']' + m.content[:3] }}{%- endfor -%}"


def test_where_the_check_fails_turns_are_rendered_anew(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "memra.prompt")
    counting = TextModel.load(FIXTURES / "tiny", chat_template=MERGED)
    assert counting._suffixes.kinds == {"text"}
    assert [r.message for r in caplog.records] == [
        "the template shows no exact suffix behind calls turns, they are rendered anew"
    ]
    request = ask(message("user", "q"), message("assistant", call()), result(), tools=TOOLS)
    spoken, _ = turns(request.input.messages, "chat")  # type: ignore[union-attr]
    assert counting.continued(request, spoken, 2, Known()) is None
    hiding = TextModel.load(FIXTURES / "tiny", chat_template=HIDING)
    assert hiding._suffixes.kinds == frozenset()


def test_tools_without_any_text_argument() -> None:
    number = Tool("get_weather", "", {"type": "object", "properties": {"days": {"type": "integer"}}})
    answer = message("assistant", call('{"days": 1}'))
    whole, rest, _ = after(model("xml-function"), ask(message("user", "q"), answer, result(), tools=(number,)), answer)
    assert whole.endswith("</tool_call>" + rest)
