"""A request costs the same whichever dialect carries it: prompt tokens, completion tokens, debit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from inside import inside

from memra_mlx.admission.keyring import digest_of
from memra_mlx.dialects import chat
from memra_mlx.fixtures import TINY_ID

SCRIPT = {"script": ["one ", "two ", "three ", "four"]}
TOOL = {
    "name": "run",
    "description": "Runs a command.",
    "schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


@dataclass(frozen=True)
class Said:
    """A turn of text."""

    role: str
    text: str


@dataclass(frozen=True)
class Called:
    """An assistant turn with one call, and its result."""

    command: str
    result: str


@dataclass(frozen=True)
class Talk:
    """A conversation, said alike in every dialect."""

    turns: tuple[Said | Called, ...]
    system: str = ""
    tools: bool = False


U, A = (lambda text: Said("user", text)), (lambda text: Said("assistant", text))
PLAIN = (
    Talk((U("hi"),)),
    Talk((U("hi"),), "You are brief."),
    Talk((U("two\nlines and a  gap"), A("yes"), U("again"))),
    Talk((U("é ∑ 漢字 🙂"),), "Ünïcode."),
    Talk((U("a"), A("b"), U("c"), A("d"), U("e")), "Count."),
    Talk((U("x " * 200),), "Long."),
)
TOOLED = (
    Talk((U("list"),), tools=True),
    Talk((U("list"),), "You run commands.", tools=True),
    Talk((U("list"), Called("ls", "a.txt")), tools=True),
    Talk((U("list"), Called("ls -l", "a.txt\nb.txt"), A("Two files."), U("remove one")), "Careful.", tools=True),
    Talk((U("go"), Called("one", "1"), Called("two", "2")), tools=True),
    Talk((U("quote"), Called('echo "x"', '{"json": [1, 2]}')), "Quote.", tools=True),
)


def chat_body(talk: Talk) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": talk.system}] if talk.system else []
    for i, turn in enumerate(talk.turns):
        match turn:
            case Said(role=role, text=text):
                messages.append({"role": role, "content": text})
            case Called(command=command, result=result):
                function = {"name": "run", "arguments": json.dumps({"command": command})}
                call = {"id": f"call_{i}", "type": "function", "function": function}
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
                messages.append({"role": "tool", "tool_call_id": f"call_{i}", "content": result})
    function = {"name": TOOL["name"], "description": TOOL["description"], "parameters": TOOL["schema"]}
    tools = {"tools": [{"type": "function", "function": function}]} if talk.tools else {}
    return {"messages": messages, **tools}


def messages_body(talk: Talk) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for i, turn in enumerate(talk.turns):
        match turn:
            case Said(role=role, text=text):
                messages.append({"role": role, "content": [{"type": "text", "text": text}]})
            case Called(command=command, result=result):
                use = {"type": "tool_use", "id": f"call_{i}", "name": "run", "input": {"command": command}}
                messages.append({"role": "assistant", "content": [use]})
                answer = {"type": "tool_result", "tool_use_id": f"call_{i}", "content": result}
                messages.append({"role": "user", "content": [answer]})
    tool = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["schema"]}
    more = {"system": talk.system} if talk.system else {}
    return {"messages": messages, **more, **({"tools": [tool]} if talk.tools else {})}


def responses_body(talk: Talk) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for i, turn in enumerate(talk.turns):
        match turn:
            case Said(role=role, text=text):
                kind = "output_text" if role == "assistant" else "input_text"
                items.append({"type": "message", "role": role, "content": [{"type": kind, "text": text}]})
            case Called(command=command, result=result):
                arguments = json.dumps({"command": command})
                items.append({"type": "function_call", "call_id": f"call_{i}", "name": "run", "arguments": arguments})
                items.append({"type": "function_call_output", "call_id": f"call_{i}", "output": result})
    tool = {"type": "function", "name": TOOL["name"], "description": TOOL["description"], "parameters": TOOL["schema"]}
    more = {"instructions": talk.system} if talk.system else {}
    return {"input": items, **more, **({"tools": [tool]} if talk.tools else {})}


def requests(talk: Talk, rendered: tuple[str, list[int]], max_tokens: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The conversation in every dialect and form, as (path, body)."""
    shared = {"model": TINY_ID, "temperature": 0}
    text, ids = rendered
    for stream in (False, True):
        yield (
            "/v1/chat/completions",
            {**shared, **chat_body(talk), "max_completion_tokens": max_tokens, "stream": stream},
        )
        yield "/v1/messages", {**shared, **messages_body(talk), "max_tokens": max_tokens, "stream": stream}
        yield "/v1/responses", {**shared, **responses_body(talk), "max_output_tokens": max_tokens, "stream": stream}
        yield "/v1/completions", {**shared, "prompt": text, "max_tokens": max_tokens, "stream": stream}
        yield "/v1/completions", {**shared, "prompt": ids, "max_tokens": max_tokens, "stream": stream}


def rendered(here, talk: Talk) -> tuple[str, list[int]]:
    """The prompt that the model reads, as text and as ids."""
    model = here.services.models.default.loaded.text
    ids = model.prompt(chat.parse({"model": TINY_ID, **chat_body(talk)}, {})).ids
    return model.decode(ids), ids


async def costs(here, talk: Talk, max_tokens: int) -> set[tuple[int, ...]]:
    """What all forms of `talk` cost, each under a salt of its own."""
    before = len(here.rows())
    sent = []
    for i, (path, body) in enumerate(requests(talk, rendered(here, talk), max_tokens)):
        body = {**body, "cache_salt": f"{before}-{i}"}
        sent.append(here.client.post(path, json=body, headers={"x-api-key": "mk-a"}))
    answers = await asyncio.gather(*sent)
    assert [answer.status_code for answer in answers] == [200] * len(sent), [a.text for a in answers]
    rows = here.rows()[before:]
    assert {row["outcome"] for row in rows} == {"completed"}
    assert len(rows) == len(sent) == 10
    keys = ("prompt_tokens", "cached_tokens", "completion_tokens", "debit_prompt", "debit_completion", "cost")
    return {tuple(row[key] for key in keys) for row in rows}


def options(folder) -> dict[str, str]:
    prices = "prices = { prompt = 3, cached = 0.3, completion = 15 }"
    key = f"[[keys]]\nsha256 = '{digest_of('mk-a')}'\ntenant = 'acme'\n"
    (folder / "keys.toml").write_text(f"{key}[tenants.acme]\nbudget = 1000\n{prices}\n")
    return {"keys_file": str(folder / "keys.toml")}


async def test_all_dialects_cost_the_same(tmp_path):
    async with inside(tmp_path, SCRIPT, **options(tmp_path)) as here:
        seen = set()
        for talk in (*PLAIN, *TOOLED):
            found = await costs(here, talk, 50)
            assert len(found) == 1, (talk, found)
            [(prompt, cached, completion, *due)] = found
            assert (cached, completion) == (0, 4)
            assert due == [prompt, 4, 3 * prompt + 60]
            seen |= found
        assert len(seen) == 12
        assert sum(await here.services.ledger.account("acme")) == sum(row["cost"] for row in here.rows())


@pytest.mark.engine
async def test_all_dialects_cost_the_same_on_a_model(tmp_path):
    async with inside(tmp_path, {}, engine="mlx", **options(tmp_path)) as here:
        for talk in (PLAIN[1], PLAIN[4], TOOLED[1], TOOLED[3]):
            found = await costs(here, talk, 12)
            assert len(found) == 1, (talk, found)
