"""What a chat template takes, as found by `probe` at load time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """`system`: a first system message is shown; `systems`: several are; `late_system`: also later, in its place.
    `neighbours`: two messages of one role may follow each other. `tool_role`: results are shown; `user_after_result`: a
    user message may follow one. `tools` and `calls`: definitions and calls are shown. `parts`: content must be a list.
    `short_ids`: call ids must be nine letters or digits. `switch`: the variable that turns reasoning on and off;
    `efforts`: the values of `reasoning_effort` that matter. `ascii_json`: JSON is written in ASCII escapes."""

    system: bool
    systems: bool
    late_system: bool
    neighbours: bool
    tool_role: bool
    user_after_result: bool
    tools: bool
    calls: bool
    arguments: Literal["map", "text"]
    parts: bool
    reasoning: bool
    short_ids: bool
    switch: Literal["enable_thinking", "thinking"] | None
    efforts: tuple[str, ...]
    ascii_json: bool
