"""The visible transcript: what a client can replay of a conversation, as a chain of keys.

    key(0) = head and tools        key(n) = hash(key(n-1), item n)

An item is what the model saw of a turn, in a form that survives the hands of a client. What the client wrote counts as
it is, but for white space at its ends. What we wrote comes back in many shapes: arguments are re-serialised, texts
trimmed, split, merged or dropped, ids renamed. So of an answer only its words, its indentation and its calls count, and
reasoning never does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from memra_mlx.prompt.conversation import Turn
from memra_mlx.request import Tool, ToolCall

Key = bytes

_SIZE = 16
_SPACE = re.compile(r"\s*\n([ \t]+)(?=\S)|\s+")
_UNPARSED = "__unparsedToolInput"  # what Claude Code makes of arguments that are no JSON


@dataclass(frozen=True, slots=True)
class Chain:
    """Keys of a conversation. `keys[n]` stands for everything before turn n; `ends` are the turns (exclusive, rising)
    at which an answer ends, those in a row taken as one."""

    keys: tuple[Key, ...]
    ends: tuple[int, ...]

    @property
    def last(self) -> Key:
        """The key of the whole conversation."""
        return self.keys[-1]


def chain(turns: Sequence[Turn], tools: Iterable[Tool], head: str = "") -> Chain:
    """Fold a conversation. `head` is whatever else decides how its beginning is rendered."""
    return fold(_hash(b"", ["head", head, digest_of_tools(tools)]), turns)


def fold(key: Key, turns: Sequence[Turn]) -> Chain:
    """Go on from a key with more turns."""
    keys = [key]
    ends: list[int] = []
    answer: list[Turn] = []
    before = keys[0]
    for at, turn in enumerate(turns, 1):
        if turn.role != "assistant":
            answer = []
            keys.append(_hash(keys[-1], item) if (item := _item(turn)) else keys[-1])
            continue
        if answer:
            ends.pop()
        else:
            before = keys[-1]
        answer.append(turn)
        keys.append(extended(before, answer))
        ends.append(at)
    return Chain(tuple(keys), tuple(ends))


def extended(key: Key, answer: Sequence[Turn]) -> Key:
    """The key of a conversation behind an answer, which may be spread over several turns."""
    words = "".join(spoken(turn.text) for turn in answer)
    calls = [[call.name, arguments(call)] for turn in answer for call in turn.calls]
    return _hash(key, ["assistant", words, calls]) if words or calls else key


def spoken(text: str) -> str:
    """The words of an answer, with the indentation of its lines and no other white space."""
    return _SPACE.sub(lambda m: f"\n{m[1]}" if m[1] else "", text.strip())


def arguments(call: ToolCall) -> str:
    """Arguments as canonical JSON; what is no object is a text `input`."""
    try:
        value = json.loads(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        value = {"input": call.arguments}
    if list(value) == [_UNPARSED] and isinstance(value[_UNPARSED], dict):
        value = {"input": value[_UNPARSED].get("raw", "")}
    return _json(_plain(value))


def digest_of_tools(tools: Iterable[Tool]) -> str:
    """What the model sees of the tools, in few characters; empty for none."""
    shown = [[tool.name, tool.description, _plain(tool.parameters), tool.custom] for tool in tools]
    return _hash(b"", shown).hex() if shown else ""


def digest_of_system(turns: Sequence[Turn]) -> str:
    """The same for the system messages at the beginning."""
    texts = []
    for turn in turns:
        if turn.role != "system":
            break
        texts.append(turn.text.strip())
    return _hash(b"", texts).hex() if any(texts) else ""


def _item(turn: Turn) -> list[Any]:
    text = turn.text.strip()
    if turn.role == "tool":
        return ["tool", turn.name, text]
    return [turn.role, text] if text else []


def _plain(value: Any) -> Any:
    """A JSON value in which numbers that are equal are written alike: clients in JavaScript know one kind."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"))


def _hash(before: Key, item: list[Any]) -> Key:
    return blake2b(before + _json(item).encode(), digest_size=_SIZE, person=b"memra-visible").digest()
