"""Conversations without a server: a request in, a scripted answer out, through everything between parse and frames."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from memra_mlx import ids
from memra_mlx.cache.seal import Sealer
from memra_mlx.cache.transcripts import Transcripts
from memra_mlx.continuity import History, Settings
from memra_mlx.dialects import chat, messages, responses
from memra_mlx.engine.protocol import Started, Token
from memra_mlx.events import Answer, Begin, Event, Finish, Usage, fold
from memra_mlx.fixtures import TINY_PATH
from memra_mlx.prompt.text_model import Prompt, TextModel
from memra_mlx.request import Request
from memra_mlx.thread import Keeping

CONTEXT = 4096
KEY = b"k" * 32
DIALECTS: dict[str, ModuleType] = {"chat": chat, "messages": messages, "responses": responses}
CALL = '<tool_call>\n{"name": "read", "arguments": {"path":"a b", "n": 2}}\n</tool_call>'
THOUGHT = ("<think>", "hidden words", "</think>", "\n\n")
OPENED = '{"name": "read", "arguments": {"path": "x"}'
WORDS = (
    *THOUGHT, CALL, "Let me look.", "\n", "It says ", "hello", "!", " STOP and more", "Bye.", "\n<tool_call>\n", OPENED,
    "}\n</tool_call>", "é STOP", "deep ",
)  # fmt: skip
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}}


@cache
def text_model() -> TextModel:
    """The embedded model's text side, with `WORDS` as tokens."""
    return TextModel.load(TINY_PATH, extra_tokens=[word.encode() for word in WORDS])


def tokens(*pieces: str) -> list[int]:
    base = text_model().vocab_size - len(WORDS)
    return [base + WORDS.index(piece) for piece in pieces]


class Desk:
    """One server's memory of conversations, under `folder`."""

    def __init__(self, folder: Path, *, namespace: str = "", key: bytes = KEY, **settings: Any):
        self.store = Transcripts(folder, 16 << 20)
        self.namespace = namespace
        self.text = text_model()
        sealer = Sealer([key]) if key else None
        limits = Settings(**({"context": CONTEXT} | settings))
        self.history = History(Keeping(self.text, self.store, sealer), "model", limits)

    def parse(self, dialect: str, body: dict[str, Any]) -> Request:
        more = {"max_tokens": 99} if dialect == "messages" else {}
        request: Request = DIALECTS[dialect].parse({"model": "m", **more, **body}, {})
        return request

    def prompt(self, dialect: str, body: dict[str, Any]) -> Prompt:
        return self.history.prompt(self.parse(dialect, body), self.namespace)

    def ask(
        self, dialect: str, body: dict[str, Any], *pieces: str, reason: str = "stop", cached: int = 0
    ) -> tuple[Prompt, dict[str, Any]]:
        """Prompt and answer body of one request."""
        request = self.parse(dialect, body)
        prompt = self.history.prompt(request, self.namespace)
        events = asyncio.run(self._run(request, prompt, pieces, reason, cached))
        answer: Answer = fold([Begin("x_1", "m", len(prompt.ids), cached), *events])
        return prompt, DIALECTS[dialect].body(request, answer, 0)

    async def _run(
        self, request: Request, prompt: Prompt, pieces: Sequence[str], reason: str, cached: int
    ) -> list[Event]:
        parser = self.text.parser(
            request, prompt, lambda: ids.call_id(request.dialect, reasoned=parser.reasoning_tokens > 0)
        )
        thread = prompt.thread
        assert thread is not None
        await thread.follow(prompt, parser, [Started("r", cached, "memory" if cached else "none")], [])
        out: list[Event] = []
        for token in tokens(*pieces):
            message = Token("r", token)
            events = parser.push(message)
            out += await thread.follow(prompt, parser, [message], events)
            if parser.done:
                break
        end: list[Event] = list(parser.finish(reason))  # type: ignore[arg-type]
        usage = Usage(len(prompt.ids), cached, parser.completion_tokens, parser.reasoning_tokens)
        end.append(Finish(parser.finish_reason, usage, parser.stopped))
        return out + (end if reason == "cancelled" else await thread.follow(prompt, parser, [], end))


def tool(dialect: str) -> dict[str, Any]:
    """The tool `read` as a dialect offers it."""
    function = {"name": "read", "description": "Read", "parameters": SCHEMA}
    match dialect:
        case "chat":
            return {"type": "function", "function": function}
        case "messages":
            return {"name": "read", "description": "Read", "input_schema": SCHEMA}
        case _:
            return {"type": "function", **function}


def user(dialect: str, text: str) -> dict[str, Any]:
    """The body of a first request."""
    key = "input" if dialect == "responses" else "messages"
    return {key: [{"role": "user", "content": text}], "tools": [tool(dialect)]}


def answered(dialect: str, body: dict[str, Any], answer: dict[str, Any], result: str) -> dict[str, Any]:
    """The next request of a client that replays all it got, with one result."""
    match dialect:
        case "chat":
            message = answer["choices"][0]["message"]
            call_id = message["tool_calls"][0]["id"]
            more = [message, {"role": "tool", "tool_call_id": call_id, "content": result}]
            return {**body, "messages": [*body["messages"], *more]}
        case "messages":
            call_id = next(b["id"] for b in answer["content"] if b["type"] == "tool_use")
            block = {"type": "tool_result", "tool_use_id": call_id, "content": result}
            more = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": [block]}]
            return {**body, "messages": [*body["messages"], *more]}
        case _:
            call_id = next(i["call_id"] for i in answer["output"] if i["type"] == "function_call")
            output = {"type": "function_call_output", "call_id": call_id, "output": result}
            return {**body, "input": [*body["input"], *answer["output"], output]}
