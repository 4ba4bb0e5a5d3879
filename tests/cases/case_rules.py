"""The named rules of the case files, each over the answers of one step."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from case_answers import Answer
from case_dialects import answer_text
from case_paths import MISSING, get, same

CHUNK_KEYS = {
    "id",
    "object",
    "created",
    "model",
    "choices",
    "usage",
    "system_fingerprint",
    "service_tier",
    "obfuscation",
}
DELTAS = {
    "text_delta": "text",
    "citations_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
    "input_json_delta": "tool_use",
}


@dataclass(frozen=True)
class Seen:
    """What a rule looks at: the answers, the check as written, the same requests sent alone."""

    answers: tuple[Answer, ...]
    spec: dict[str, Any]
    solos: tuple[Answer, ...] = ()

    @property
    def data(self) -> list[tuple[str, Any]]:
        """(name, data) of the events of the only answer."""
        return [(event.name, event.data) for event in self.answers[0].events]

    @property
    def chunks(self) -> list[Any]:
        return [data for name, data in self.data if name == "chunk"]


def delta_type_matches_block(seen: Seen) -> list[str]:
    kinds: dict[int, str] = {}
    faults, count = [], 0
    for name, data in seen.data:
        if name == "content_block_start":
            kinds[data["index"]] = data["content_block"]["type"]
        if name == "content_block_delta":
            count += 1
            delta = data["delta"]["type"]
            if DELTAS.get(delta) != kinds.get(data["index"]):
                faults.append(f"{delta} in block {data['index']}, which is {kinds.get(data['index'])}")
    return faults or ([] if count else ["no content_block_delta"])


def event_name_equals_type(seen: Seen) -> list[str]:
    events = seen.answers[0].events
    bad = [e for e in events if e.data != "[DONE]" and (e.line is None or get(e.data, "type") != e.line)]
    return [f"event line {e.line!r}, data.type {get(e.data, 'type')!r}" for e in bad] or _some(events)


def _some(found: Any) -> list[str]:
    return [] if found else ["no events"]


def sequence_contiguous(seen: Seen) -> list[str]:
    numbers = [get(data, "sequence_number") for name, data in seen.data if name != "done"]
    wanted = list(range(len(numbers)))
    return _some(numbers) if numbers == wanted else [f"sequence numbers {numbers}"]


def item_id_stable(seen: Seen) -> list[str]:
    places: dict[str, int] = {}
    faults, count = [], 0
    for name, data in seen.data:
        if name == "response.output_item.added":
            places[data["item"]["id"]] = data["output_index"]
        item = get(data, "item_id")
        if item is not MISSING:
            count += 1
            if item not in places or places[item] != data.get("output_index"):
                faults.append(f"{name}: item {item} at {data.get('output_index')}, added at {places.get(item)}")
    return faults or ([] if count else ["no event has an item_id"])


def chunk_identity_constant(seen: Seen) -> list[str]:
    found = {tuple(str(get(data, key)) for key in ("id", "model", "created")) for data in seen.chunks}
    return [] if len(found) == 1 else [f"(id, model, created) of the chunks: {sorted(found)}"]


def chunk_keys_known(seen: Seen) -> list[str]:
    extra = sorted({key for data in seen.chunks for key in data} - CHUNK_KEYS)
    return [f"unknown keys in chunks: {extra}"] if extra else _some(seen.chunks)


def tool_args_by_index(seen: Seen) -> list[str]:
    texts: dict[int, str] = {}
    for data in seen.chunks:
        calls = get(data, "choices[0].delta.tool_calls")
        for call in calls if isinstance(calls, list) else []:
            texts[call["index"]] = texts.get(call["index"], "") + (get(call, "function.arguments") or "")
    try:
        found = [json.loads(texts[index]) for index in sorted(texts)]
    except ValueError:
        return [f"arguments are not JSON: {texts}"]
    return [] if same(found, seen.spec["value"]) else [f"arguments {found}"]


def utf8(seen: Seen) -> list[str]:
    try:
        seen.answers[0].body.decode("utf-8")
    except UnicodeDecodeError as fault:
        return [str(fault)]
    return []


def parallel_equals_solo(seen: Seen) -> list[str]:
    texts, solos = [answer_text(a) for a in seen.answers], [answer_text(a) for a in seen.solos]
    if not solos or len(texts) != len(solos):
        return [f"{len(texts)} answers against {len(solos)} sent alone"]
    different = [(a, b) for a, b in zip(texts, solos, strict=True) if a != b]
    return [] if len(different) <= seen.spec.get("allow", 0) else [f"{a!r} together, {b!r} alone" for a, b in different]


def distinct_at_least(seen: Seen) -> list[str]:
    found = {answer_text(answer) for answer in seen.answers}
    return [] if len(found) >= seen.spec["value"] else [f"only {len(found)} different texts"]


RULES: dict[str, Callable[[Seen], list[str]]] = {
    rule.__name__: rule
    for rule in (
        delta_type_matches_block, event_name_equals_type, sequence_contiguous, item_id_stable, chunk_identity_constant,
        chunk_keys_known, tool_args_by_index, utf8, parallel_equals_solo, distinct_at_least,
    )
}  # fmt: skip
