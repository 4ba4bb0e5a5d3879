"""The official Python SDKs against the embedded model: text, a tool loop, streams and their accumulated finals."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from served import Served

pytestmark = [pytest.mark.e2e, pytest.mark.engine]

ASK = "Run `wc -l data.txt` and tell me the number"
COMMAND = "wc -l data.txt"
PRINTED = "7 data.txt"
HELLO = "Say hello."
TEXT = "Shell command to run"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": TEXT},
        "description": {"type": "string", "description": "What it does"},
    },
    "required": ["command"],
}
FUNCTION = {"name": "Bash", "description": "Run a shell command", "parameters": SCHEMA}
CHAT_TOOLS: Any = [{"type": "function", "function": FUNCTION}]
RESPONSES_TOOLS: Any = [{"type": "function", "strict": False, **FUNCTION}]
MESSAGES_TOOLS: Any = [{"name": "Bash", "description": FUNCTION["description"], "input_schema": SCHEMA}]


@pytest.fixture
def oai(live: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=live.base + "/v1", api_key="local", max_retries=0) as client:
        yield client


@pytest.fixture
def ant(live: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=live.base, api_key="local", max_retries=0) as client:
        yield client


def test_openai_models(oai: openai.OpenAI, live: Served) -> None:
    assert next(iter(oai.models.list())).id == live.model
    assert oai.models.retrieve(live.model).id == live.model


def test_anthropic_models(ant: anthropic.Anthropic, live: Served) -> None:
    listed = ant.models.list()
    assert next(iter(listed)).id == live.model
    assert listed.data[0].type == "model"
    assert ant.models.retrieve(live.model).id == live.model


class Chat:
    """Chat completions; `stream` goes through the SDK's own accumulating helper."""

    def __init__(self, client: openai.OpenAI, model: str):
        self.client, self.model = client, model

    def ask(self, messages: Any, stream: bool, **more: Any) -> Any:
        options = {"model": self.model, "messages": messages, "max_tokens": 400, **more}
        if not stream:
            return self.client.chat.completions.create(**options)
        options["stream_options"] = {"include_usage": True}
        with self.client.chat.completions.stream(**options) as events:
            seen = "".join(event.delta for event in events if event.type == "content.delta")
            final = events.get_final_completion()
        assert seen == (final.choices[0].message.content or "")
        return final


@pytest.mark.parametrize("stream", [False, True], ids=["blocking", "stream"])
def test_chat(oai: openai.OpenAI, live: Served, stream: bool) -> None:
    chat = Chat(oai, live.model)
    final = chat.ask([{"role": "user", "content": HELLO}], stream)
    assert final.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"
    assert final.usage.total_tokens == final.usage.prompt_tokens + final.usage.completion_tokens > 0

    messages: list[Any] = [{"role": "user", "content": ASK}]
    first = chat.ask(messages, stream, tools=CHAT_TOOLS)
    (call,) = first.choices[0].message.tool_calls
    assert first.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)["command"]) == ("Bash", COMMAND)
    function = {"name": "Bash", "arguments": call.function.arguments}
    messages.append({"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]})
    messages.append({"role": "tool", "tool_call_id": call.id, "content": PRINTED})
    last = chat.ask(messages, stream, tools=CHAT_TOOLS)
    assert "7" in last.choices[0].message.content


def test_chat_chunks(oai: openai.OpenAI, live: Served) -> None:
    messages: Any = [{"role": "user", "content": HELLO}]
    with oai.chat.completions.create(model=live.model, messages=messages, stream=True) as chunks:
        seen = list(chunks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in seen)
    whole = oai.chat.completions.create(model=live.model, messages=messages)
    assert text == whole.choices[0].message.content
    assert all(chunk.usage is None for chunk in seen)
    assert [chunk.choices[0].finish_reason for chunk in seen if chunk.choices[0].finish_reason] == ["stop"]


def test_completions(oai: openai.OpenAI, live: Served) -> None:
    options: Any = {"model": live.model, "prompt": "Once", "max_tokens": 12, "temperature": 0}
    whole = oai.completions.create(**options)
    with oai.completions.create(**options, stream=True) as chunks:
        text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].text
    assert whole.usage is not None
    assert 0 < whole.usage.completion_tokens <= 12


class Responses:
    """Responses; `stream` goes through the SDK's own accumulating helper."""

    def __init__(self, client: openai.OpenAI, model: str):
        self.client, self.model = client, model

    def ask(self, items: Any, stream: bool, **more: Any) -> Any:
        options = {"model": self.model, "input": items, "store": False, **more}
        if not stream:
            return self.client.responses.create(**options)
        with self.client.responses.stream(**options) as events:
            seen = "".join(event.delta for event in events if event.type == "response.output_text.delta")
            final = events.get_final_response()
        assert seen == final.output_text
        return final


@pytest.mark.parametrize("stream", [False, True], ids=["blocking", "stream"])
def test_responses(oai: openai.OpenAI, live: Served, stream: bool) -> None:
    responses = Responses(oai, live.model)
    final = responses.ask(HELLO, stream)
    assert final.output_text
    assert final.status == "completed"
    assert final.usage.total_tokens == final.usage.input_tokens + final.usage.output_tokens > 0

    items: list[Any] = [{"role": "user", "content": ASK}]
    first = responses.ask(items, stream, tools=RESPONSES_TOOLS)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)["command"]) == ("Bash", COMMAND)
    items += [item.model_dump(exclude={"parsed_arguments"}) for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": PRINTED})
    assert "7" in responses.ask(items, stream, tools=RESPONSES_TOOLS).output_text


def test_responses_events(oai: openai.OpenAI, live: Served) -> None:
    with oai.responses.create(model=live.model, input=HELLO, stream=True) as events:
        seen = list(events)
    assert seen[0].type == "response.created"
    assert [event.sequence_number for event in seen if hasattr(event, "sequence_number")] == list(range(len(seen)))
    last = seen[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == oai.responses.create(model=live.model, input=HELLO).output_text


class Messages:
    """Messages; `stream` goes through the SDK's own accumulating helper."""

    def __init__(self, client: anthropic.Anthropic, model: str):
        self.client, self.model = client, model

    def ask(self, messages: Any, stream: bool, **more: Any) -> anthropic.types.Message:
        options = {"model": self.model, "messages": messages, "max_tokens": 400, **more}
        if not stream:
            return self.client.messages.create(**options)
        with self.client.messages.stream(**options) as events:
            seen = "".join(events.text_stream)
            final = events.get_final_message()
        assert seen == text_of(final)
        return final


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


@pytest.mark.parametrize("stream", [False, True], ids=["blocking", "stream"])
def test_messages(ant: anthropic.Anthropic, live: Served, stream: bool) -> None:
    messages = Messages(ant, live.model)
    final = messages.ask([{"role": "user", "content": HELLO}], stream)
    assert text_of(final)
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens > 0

    turns: list[Any] = [{"role": "user", "content": ASK}]
    first = messages.ask(turns, stream, tools=MESSAGES_TOOLS)
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert first.stop_reason == "tool_use"
    assert (call.name, call.input["command"]) == ("Bash", COMMAND)
    turns.append({"role": "assistant", "content": [block.model_dump() for block in first.content]})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": PRINTED}
    turns.append({"role": "user", "content": [result]})
    assert "7" in text_of(messages.ask(turns, stream, tools=MESSAGES_TOOLS))


def test_messages_with_thinking(ant: anthropic.Anthropic, live: Served) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    ask: list[Any] = [{"role": "user", "content": ASK}]
    options: Any = {"max_tokens": 2048, "thinking": thinking, "tools": MESSAGES_TOOLS}
    final = Messages(ant, live.model).ask(ask, True, **options)
    assert [block.type for block in final.content][-1] == "tool_use"
    assert all(block.signature for block in final.content if block.type == "thinking")


def test_count_tokens(ant: anthropic.Anthropic, live: Served) -> None:
    options: Any = {"model": live.model, "messages": [{"role": "user", "content": ASK}], "tools": MESSAGES_TOOLS}
    counted = ant.messages.count_tokens(**options).input_tokens
    usage = ant.messages.create(**options, max_tokens=1).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0) + (
        usage.cache_creation_input_tokens or 0
    )


def test_errors(oai: openai.OpenAI, ant: anthropic.Anthropic, live: Served) -> None:
    messages: Any = [{"role": "user", "content": HELLO}]
    with pytest.raises(openai.BadRequestError) as refused:
        oai.chat.completions.create(model="no-such-model", messages=messages)
    assert refused.value.code == "model_not_found"
    with pytest.raises(anthropic.BadRequestError) as refusal:
        ant.messages.create(model=live.model, messages=[], max_tokens=5)
    assert "messages" in str(refusal.value)
    with pytest.raises(openai.NotFoundError):
        oai.models.retrieve("no-such-model")
