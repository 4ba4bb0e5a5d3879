"""Structured outputs and forced calls over HTTP, through the official SDKs, against the embedded model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import anthropic
import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field
from served import Served

pytestmark = pytest.mark.engine

PLACES = 4
SHORT, LONG = 20, 200
TOOLS: dict[str, dict[str, Any]] = {
    "set_light": {
        "type": "object",
        "properties": {
            "room": {"type": "string", "maxLength": 8},
            "level": {"type": "integer", "minimum": 0, "maximum": 100},
            "mode": {"enum": ["day", "night"]},
        },
        "required": ["room", "level"],
        "additionalProperties": False,
    },
    "stop": {"type": "object", "properties": {}},
}


class Color(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Literal["red", "green", "blue"]
    level: int = Field(ge=0, le=100)


class Lamp(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str = Field(max_length=8)
    on: bool
    color: Color | None
    tags: list[Literal["a", "b"]] = Field(max_length=2)


class Signal(BaseModel):
    """Bounded by words alone: the SDK takes lengths and ranges out of what it sends."""

    color: Literal["red", "green"]
    on: bool
    next: Literal["stop", "go"] | None


@dataclass(frozen=True)
class Clients:
    openai: openai.OpenAI
    anthropic: anthropic.Anthropic
    model: str


@pytest.fixture(scope="module")
def clients(live: Served) -> Iterator[Clients]:
    first = openai.OpenAI(base_url=f"{live.base}/v1", api_key="x", max_retries=0, timeout=600)
    second = anthropic.Anthropic(base_url=live.base, api_key="x", max_retries=0, timeout=600)
    with first, second:
        yield Clients(first, second, live.model)


def check_calls(calls: list[tuple[str, str]]) -> None:
    assert calls
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), TOOLS[name])


def responses_parsed(clients: Clients, seed: int) -> None:
    answer = clients.openai.responses.parse(
        model=clients.model, input="A lamp?", text_format=Lamp, temperature=1, max_output_tokens=300,
        reasoning={"effort": "none"}, extra_body={"seed": seed},
    )  # fmt: skip
    assert isinstance(answer.output_parsed, Lamp)


def chat_parsed(clients: Clients, seed: int) -> None:
    answer = clients.openai.chat.completions.parse(
        model=clients.model, messages=[{"role": "user", "content": "A lamp?"}], response_format=Lamp, temperature=1,
        max_tokens=300, reasoning_effort="none", seed=seed,
    )  # fmt: skip
    assert isinstance(answer.choices[0].message.parsed, Lamp)


def messages_parsed(clients: Clients, seed: int) -> None:
    answer = clients.anthropic.messages.parse(
        model=clients.model, messages=[{"role": "user", "content": f"A signal? {seed}"}], output_format=Signal,
        max_tokens=300, thinking={"type": "disabled"}, extra_body={"temperature": 1},
    )  # fmt: skip
    assert isinstance(answer.parsed_output, Signal)


def chat_called(clients: Clients, seed: int) -> None:
    named: Any = {"type": "function", "function": {"name": "set_light"}}
    tools: Any = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in TOOLS.items()]
    answer = clients.openai.chat.completions.create(
        model=clients.model, messages=[{"role": "user", "content": "hi"}], tools=tools,
        tool_choice="required" if seed % 2 else named, parallel_tool_calls=False, temperature=1, max_tokens=300,
        reasoning_effort="none", seed=seed,
    )  # fmt: skip
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    check_calls(
        [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or () if c.type == "function"]
    )


def responses_called(clients: Clients, seed: int) -> None:
    tools: Any = [{"type": "function", "name": n, "parameters": s, "strict": False} for n, s in TOOLS.items()]
    answer = clients.openai.responses.create(
        model=clients.model, input="hi", tools=tools, parallel_tool_calls=False, temperature=1, max_output_tokens=300,
        tool_choice="required" if seed % 2 else {"type": "function", "name": "set_light"},
        reasoning={"effort": "none"}, extra_body={"seed": seed},
    )  # fmt: skip
    assert answer.status == "completed"
    check_calls([(item.name, item.arguments) for item in answer.output if item.type == "function_call"])


def messages_called(clients: Clients, seed: int) -> None:
    tools: Any = [{"name": n, "input_schema": s} for n, s in TOOLS.items()]
    choice: Any = (
        {"type": "any", "disable_parallel_tool_use": True} if seed % 2 else {"type": "tool", "name": "set_light"}
    )
    answer = clients.anthropic.messages.create(
        model=clients.model, messages=[{"role": "user", "content": f"hi {seed}"}], tools=tools, tool_choice=choice,
        max_tokens=300, thinking={"type": "disabled"}, extra_body={"temperature": 1},
    )  # fmt: skip
    assert answer.stop_reason == "tool_use"
    check_calls([(block.name, json.dumps(block.input)) for block in answer.content if block.type == "tool_use"])


RUNS = (responses_parsed, chat_parsed, messages_parsed, chat_called, responses_called, messages_called)


def repeat(run: Callable[[Clients, int], None], clients: Clients, count: int) -> None:
    with ThreadPoolExecutor(PLACES) as pool:
        for done in [pool.submit(run, clients, seed) for seed in range(count)]:
            done.result()


@pytest.mark.parametrize("run", RUNS)
def test_every_answer_is_valid(clients: Clients, run: Callable[[Clients, int], None]) -> None:
    repeat(run, clients, SHORT)


@pytest.mark.nightly
@pytest.mark.parametrize("run", RUNS)
def test_very_many_answers_are_valid(clients: Clients, run: Callable[[Clients, int], None]) -> None:
    repeat(run, clients, LONG)


def post(live: Served, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{live.base}{path}", json={"model": live.model, **body}, timeout=600)


def ask(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"messages": [{"role": "user", "content": "hi"}], "response_format": form, "temperature": 1, **more}


BOOL = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def test_reasoning_comes_first_and_a_cut_in_it_is_no_answer(live: Served) -> None:
    whole = post(live, "/v1/chat/completions", ask(BOOL, reasoning_effort="high", max_tokens=400, seed=3)).json()
    assert json.loads(whole["choices"][0]["message"]["content"])["ok"] in (True, False)
    for seed in range(20):
        body = ask(BOOL, reasoning_effort="high", max_tokens=3, seed=seed)
        (choice,) = post(live, "/v1/chat/completions", body).json()["choices"]
        if choice["message"].get("reasoning_content"):
            assert choice["finish_reason"] == "length"
            assert not choice["message"]["content"]
            return
    pytest.fail("it never reasoned")


def test_a_stream_with_logprobs_and_a_seed(clients: Clients) -> None:
    body = ask(BOOL, reasoning_effort="none", seed=5, logprobs=True, top_logprobs=2)
    texts = []
    for _ in range(2):
        with clients.openai.chat.completions.create(model=clients.model, stream=True, **body) as stream:
            chunks = [chunk.choices[0] for chunk in stream if chunk.choices]
        texts.append("".join(chunk.delta.content or "" for chunk in chunks))
        assert sum(len(chunk.logprobs.content or ()) for chunk in chunks if chunk.logprobs) > 0
    assert texts[0] == texts[1]
    assert json.loads(texts[0]).keys() == {"ok"}


def test_a_stop_string_ends_it(live: Served) -> None:
    (choice,) = post(live, "/v1/chat/completions", ask(BOOL, reasoning_effort="none", stop=":")).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ('{"ok"', "stop")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", ask({"type": "objekt"}), "response_format.json_schema.schema.type"),
        (
            "/v1/responses",
            {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}},
            "text.format.schema.not",
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 9,
                "messages": [{"role": "user", "content": "x"}],
                "output_config": {"format": {"type": "json_schema", "schema": {"$ref": "#/$defs/x"}}},
            },
            "output_config.format.schema.$ref",
        ),
    ],
)
def test_refusals_name_the_keyword(live: Served, path: str, body: dict[str, Any], param: str) -> None:
    refused = post(live, path, body)
    assert refused.status_code == 400
    assert param in refused.text
