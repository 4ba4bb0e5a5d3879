"""The output items of a Responses answer: one block, one item.

An item renders itself four ways: what its `output_item.added` carries and what follows it, each piece, the end of its
content, and the whole item. Frames come as (type, fields); the stream adds its numbers and the item's place.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from memra_mlx.dialects.content import UNLIKELY, UNSEALED
from memra_mlx.events import Block, BlockStart, TokenLogprob
from memra_mlx.request import Request, Tool

Frame = tuple[str, dict[str, Any]]

"""Stands for minus infinity, which JSON does not have."""


class Item(Protocol):
    """One output item as it grows."""

    id: str

    def opening(self) -> list[Frame]:
        """What follows `output_item.added`."""

    def delta(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> list[Frame]:
        """A further piece."""

    def closing(self, seal: str) -> list[Frame]:
        """What comes before `output_item.done`."""

    def wire(self, status: str) -> dict[str, Any]:
        """The item as it is now."""

    def torn(self) -> bool:
        """Whether an answer cut by length here leaves this last item unfinished."""


class _Message:
    def __init__(self, item_id: str) -> None:
        self.id = item_id
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._closed = False

    def opening(self) -> list[Frame]:
        return [("response.content_part.added", {"content_index": 0, "part": _text_part("", [])})]

    def delta(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> list[Frame]:
        found = [_logprob(entry) for entry in logprobs]
        self._texts.append(text)
        self._logprobs += found
        return [("response.output_text.delta", {"content_index": 0, "delta": text, "logprobs": found})]

    def closing(self, seal: str) -> list[Frame]:
        self._closed = True
        text = "".join(self._texts)
        return [
            ("response.output_text.done", {"content_index": 0, "text": text, "logprobs": self._logprobs}),
            ("response.content_part.done", {"content_index": 0, "part": _text_part(text, self._logprobs)}),
        ]

    def wire(self, status: str) -> dict[str, Any]:
        content = [_text_part("".join(self._texts), self._logprobs)] if self._closed else []
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    def torn(self) -> bool:
        return True


class _Reasoning:
    """Its text is sent as the one summary part, whole: that is the form in which every client shows and replays it."""

    def __init__(self, item_id: str, sealing: bool) -> None:
        self.id = item_id
        self._sealing = sealing
        self._texts: list[str] = []
        self._seal: str | None = None
        self._closed = False

    def opening(self) -> list[Frame]:
        return [("response.reasoning_summary_part.added", {"summary_index": 0, "part": _summary_part("")})]

    def delta(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> list[Frame]:
        self._texts.append(text)
        return [("response.reasoning_summary_text.delta", {"summary_index": 0, "delta": text})]

    def closing(self, seal: str) -> list[Frame]:
        self._closed = True
        self._seal = (seal or UNSEALED) if self._sealing else None
        text = "".join(self._texts)
        return [
            ("response.reasoning_summary_text.done", {"summary_index": 0, "text": text}),
            ("response.reasoning_summary_part.done", {"summary_index": 0, "part": _summary_part(text)}),
        ]

    def wire(self, status: str) -> dict[str, Any]:
        summary = [_summary_part("".join(self._texts))] if self._closed else []
        return {
            "id": self.id,
            "type": "reasoning",
            "status": status,
            "summary": summary,
            "encrypted_content": self._seal,
        }

    def torn(self) -> bool:
        return True


class _Call:
    """A call of a function, or of a custom tool: the same life under other names."""

    def __init__(self, item_id: str, start: BlockStart, tool: Tool | None) -> None:
        self.id = item_id
        self._custom = tool is not None and tool.custom
        self._names = {"call_id": start.call_id, "name": (tool and tool.wire_name) or start.name}
        if tool and tool.namespace:
            self._names["namespace"] = tool.namespace
        self._stream = "response.custom_tool_call_input" if self._custom else "response.function_call_arguments"
        self._field = "input" if self._custom else "arguments"
        self._texts: list[str] = []
        self._bare = False

    def opening(self) -> list[Frame]:
        return []

    def delta(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> list[Frame]:
        self._texts.append(text)
        return [(f"{self._stream}.delta", {"delta": text})]

    def closing(self, seal: str) -> list[Frame]:
        self._bare = not self._texts
        frames = self.delta("{}", ()) if self._bare and not self._custom else []
        return [*frames, (f"{self._stream}.done", {self._field: "".join(self._texts)})]

    def wire(self, status: str) -> dict[str, Any]:
        kind = "custom_tool_call" if self._custom else "function_call"
        return {"id": self.id, "type": kind, "status": status, **self._names, self._field: "".join(self._texts)}

    def torn(self) -> bool:
        if self._bare or self._custom:
            return True
        try:
            msgspec.json.decode("".join(self._texts))
        except msgspec.DecodeError:
            return True
        return False


def start(request: Request, response_id: str, event: BlockStart) -> Item:
    """The item of a block that opens. Its id follows from the response's id and the block's index."""
    suffix = f"{response_id.removeprefix('resp_')}_{event.index}"
    match event.kind:
        case "text":
            return _Message(f"msg_{suffix}")
        case "reasoning":
            return _Reasoning(f"rs_{suffix}", request.sealed_reasoning)
        case "tool":
            tool = next((tool for tool in request.tools if tool.name == event.name), None)
            return _Call(f"{'ctc' if tool and tool.custom else 'fc'}_{suffix}", event, tool)


def whole(request: Request, response_id: str, index: int, block: Block) -> Item:
    """The item of a finished block."""
    item = start(request, response_id, BlockStart(index, block.kind, block.call_id, block.name))
    if block.text:
        item.delta(block.text, block.logprobs)
    item.closing(block.seal)
    return item


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _summary_part(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def _logprob(entry: TokenLogprob) -> dict[str, Any]:
    top = [_scored(token, logprob) for token, _, logprob in entry.top]
    return {**_scored(entry.token, entry.logprob), "top_logprobs": top}


def _scored(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "bytes": list(token.encode()), "logprob": max(logprob, UNLIKELY)}
