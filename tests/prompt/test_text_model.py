"""From requests to prompts: orders, roles, tools, refusals."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from prompt_samples import BASH, FIXTURES, PATCH, TEMPLATES, WEATHER, ask, message, model, rendered

from memra_mlx.errors import ApiError
from memra_mlx.prompt.text_model import TextModel
from memra_mlx.request import Image, Message, RawPrompt, Reasoning, Request, Text, ToolCall, ToolChoice, ToolResult

PNG = Image(b"\x89PNG", "image/png")
WITH_TOOLS = [name for name in TEMPLATES if name != "content-parts"]


def result(call_id: str, *parts: Text | Image | str, is_error: bool = False) -> Message:
    texts = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    return Message("tool", (ToolResult(call_id, texts, is_error),))


def call(call_id: str, arguments: str = '{"town": "Oslo"}', name: str = "get_weather") -> ToolCall:
    return ToolCall(call_id, name, arguments)


def refused(request: Request, template: str | None = None) -> ApiError:
    with pytest.raises(ApiError) as caught:
        model(template).prompt(request)
    assert caught.value.kind == "invalid"
    return caught.value


@pytest.mark.parametrize("template", [None, *TEMPLATES])
def test_every_order_keeps_every_word_in_its_place(template: str | None) -> None:
    messages = [
        message("system", "first"), message("system", "second"), message("user", "third"), message("user", "fourth"),
        message("assistant", "fifth"), message("system", "sixth"), message("assistant", "seventh"),
        message("user", "eighth"), message("system", "ninth"), message("system", "tenth"),
    ]  # fmt: skip
    text = rendered(ask(*messages), template)
    places = [text.index(word.parts[0].text) for word in messages if isinstance(word.parts[0], Text)]
    assert places == sorted(places)


@pytest.mark.parametrize("template", [None, *WITH_TOOLS])
def test_tool_turns_keep_every_word_in_its_place(template: str | None) -> None:
    messages = [
        message("user", "question"),
        message(
            "assistant", Reasoning("musing"), "spoken", call("a", '{"town": "Ona"}'), call("b", '{"town": "Twoo"}')
        ),
        result("b", "secondres"),
        result("a", "firstres"),
        message("user", "follow"),
        message("assistant", call("lost", "")),
        message("user", "never mind"),
        result("ghost", "spooky"),
    ]
    text = rendered(ask(*messages, tools=(WEATHER,)), template)
    words = ["question", "spoken", "Ona", "Twoo", "firstres", "secondres", "follow", "never mind", "spooky"]
    places = [text.index(word) for word in words]
    assert places == sorted(places)


@pytest.mark.parametrize("template", [None, *TEMPLATES])
def test_odd_conversations_are_coped_with(template: str | None) -> None:
    for messages in (
        [message("assistant", "I begin"), message("user", "so")],
        [result("ghost", "x"), message("user", "hi")],
        [message("user"), message("assistant"), message("user", "")],
        [message("system", "only"), message("user", "x"), message("assistant", Reasoning("t")), message("user", "y")],
        [result("late", "early answer"), message("assistant", call("late")), message("user", "z")],
    ):
        assert model(template).prompt(ask(*messages)).ids


def test_results_without_ids_follow_their_calls() -> None:
    messages = [
        message("user", "q"),
        message("assistant", call("", '{"town": "A1"}'), call("", '{"town": "B2"}')),
        result("", "resA"),
        result("", "resB"),
        message("assistant", call("x", '{"town": "C3"}')),
        result("x", "resC"),
        message("assistant", call("x", '{"town": "D4"}')),
        result("x", "resD"),
    ]
    text = rendered(ask(*messages, tools=(WEATHER,)))
    assert re.findall(r"[A-D]\d|res[A-D]", text) == ["A1", "B2", "resA", "resB", "C3", "resC", "D4", "resD"]


def test_items_of_one_answer_are_one_turn() -> None:
    split = [message("user", "q"), message("assistant", "text"), message("assistant", call("a")), result("a", "r")]
    whole = [message("user", "q"), message("assistant", "text", call("a")), result("a", "r")]
    assert rendered(ask(*split, tools=(WEATHER,))) == rendered(ask(*whole, tools=(WEATHER,)))


def test_arguments_of_history() -> None:
    messages = [
        message("user", "q"),
        message("assistant", call("a", ""), call("b", "*** patch", "apply_patch"), call("c", "no json")),
        result("a", "none"),
    ]
    for template in ("args-as-text", "args-as-map", "chatml"):
        text = rendered(ask(*messages, tools=(WEATHER, PATCH)), template)
        assert '"arguments": {}}' in text
        assert '{"input": "*** patch"}' in text
        assert '{"input": "no json"}' in text
    assert '"input": {"type": "string"}' in text


def test_traits_are_found_by_rendering() -> None:
    assert not model("system-first-only").traits.systems
    assert not model("alternating-only").traits.neighbours
    assert model("args-as-text").traits.arguments == "text"
    assert model("args-as-map").traits.arguments == "map"
    assert not model("no-tool-role").traits.tool_role
    assert model("content-parts").traits.parts
    assert not model("chatml").traits.parts
    assert model("xml-function").tool_style == "qwen3_coder"
    assert model("chatml").tool_style == "json_tools"
    assert model("harmony").tool_style == "harmony"
    assert model("content-parts").tool_style is None
    assert all(model(name).thinks for name in TEMPLATES)


def test_late_system_words_become_user_text_where_they_must() -> None:
    messages = [message("system", "A."), message("user", "hi"), message("assistant", "yo"), message("system", "C.")]
    text = rendered(ask(*messages, message("user", "go")), "system-first-only")
    assert text.count("<|im_start|>system") == 1
    assert "<|im_start|>user\nC.<|im_end|>\n<|im_start|>user\ngo" in text


def test_segments_end_where_turns_begin() -> None:
    own = model()
    messages = [message("system", "s"), message("user", "u"), message("assistant", "a"), message("user", "v")]
    prompt = own.prompt(ask(*messages, tools=(WEATHER,)))
    assert prompt.segment_ends[-1] == len(prompt.ids)
    assert all(a < b for a, b in pairwise(prompt.segment_ends))
    segments = [own._tokenizer.decode(prompt.ids[a:b]) for a, b in pairwise([0, *prompt.segment_ends])]
    assert [segment.split("\n")[0] for segment in segments] == [
        "<|im_start|>" + role for role in ("system", "user", "assistant", "user", "assistant")
    ]
    shorter = own.prompt(ask(*messages[:2], tools=(WEATHER,)))
    assert prompt.ids[: shorter.segment_ends[1]] == shorter.ids[: shorter.segment_ends[1]]


@pytest.mark.parametrize("template", [None, *TEMPLATES])
def test_a_begun_answer_is_continued(template: str | None) -> None:
    request = ask(message("user", "q"), message("assistant", "The answer is "))
    assert rendered(request, template).endswith("The answer is ")
    assert not rendered(ask(message("user", "q"), message("assistant", "")), template).endswith("q")


def test_a_conversation_may_not_end_in_a_call() -> None:
    error = refused(ask(message("user", "q"), message("assistant", call("toolu_9")), tools=(WEATHER,)))
    assert error.param == "messages"
    assert "toolu_9" in error.message


def test_images() -> None:
    error = refused(ask(Message("user", (Text("see"), PNG))))
    assert error.param == "messages"
    assert refused(ask(Message("user", (PNG,)), dialect="responses")).param == "input"
    messages = [message("user", "q"), message("assistant", call("a")), result("a", "file:", PNG)]
    prompt = model().prompt(ask(*messages, tools=(WEATHER,)))
    assert len(prompt.warnings) == 1
    assert "file:\n[image omitted" in model()._tokenizer.decode(prompt.ids)


def test_errors_of_tools_are_told() -> None:
    for text, shown in (("boom", "Error: boom"), ("Error 5", "Error 5")):
        messages = [message("user", "q"), message("assistant", call("a")), result("a", text, is_error=True)]
        assert f"<tool_response>\n{shown}\n</tool_response>" in rendered(ask(*messages, tools=(WEATHER,)))


def test_tools_are_refused_where_the_template_has_none() -> None:
    assert refused(ask(tools=(BASH,)), "content-parts").param == "tools"
    assert model("content-parts").prompt(ask(tools=(BASH,), tool_choice=ToolChoice("none"))).ids


def test_tool_choice_none_keeps_the_prompt() -> None:
    assert rendered(ask(tools=(BASH,), tool_choice=ToolChoice("none"))) == rendered(ask(tools=(BASH,)))


def test_a_refusal_names_the_field_and_the_reason() -> None:
    stern = TextModel.load(FIXTURES / "tiny", chat_template="{{ raise_exception('No such talk.') }}")
    with pytest.raises(ApiError, match=r"messages: .*No such talk\.") as caught:
        stern.prompt(ask())
    assert caught.value.param == "messages"


def test_raw_prompts() -> None:
    own = model()
    ids = own.prompt(Request("completions", "m", RawPrompt("<|im_start|>user\nhi")))
    assert ids.ids == own._tokenizer.encode("<|im_start|>user\nhi")
    assert (ids.segment_ends, ids.think) == ([len(ids.ids)], None)
    assert own.prompt(Request("completions", "m", RawPrompt((1, 2)))).ids == [1, 2]
    for bad in ((-1,), (1, own.vocab_size), ()):
        assert refused(Request("completions", "m", RawPrompt(bad))).param == "prompt"


def test_extra_tokens_are_bytes_behind_the_vocabulary() -> None:
    own = TextModel.load(FIXTURES / "tiny", extra_tokens=[b"\xf0\x9f", b"\xa6\x99"])
    base = own.vocab_size - 2
    stream = own._vocabulary.detokenizer()
    assert [stream.add(base), stream.add(base + 1), stream.add(own._tokenizer.encode("a")[0])] == ["", "🦙", "a"]
    assert own._vocabulary.token_text(base) == "�"
