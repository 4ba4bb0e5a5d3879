"""The checks of the case files over answers. Pure: `failures` returns what does not hold, in words.

A step may have several answers (parallel, repeated): a check must hold for each of them.
"""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jsonschema
from case_answers import Answer, Event
from case_paths import MISSING, get, holds, kind, same
from case_rules import RULES, Seen

Spec = dict[str, Any]
Steps = Sequence[Sequence[Answer]]


def failures(spec: Spec, steps: Steps, solos: Sequence[Answer] = ()) -> list[str]:
    """What of `spec` does not hold for the last of `steps`. `solos` are the same requests, each sent alone."""
    answers = steps[-1]
    if "compare" in spec or "compare_num" in spec:
        return [] if _compared(spec, steps) else [f"{_brief(spec)}: {_sides(spec, steps)}"]
    if "status_each" in spec:
        bad = [a.status for a in answers if a.status not in spec["status_each"]]
        return [f"statuses {bad} are not among {spec['status_each']}"] if bad else []
    if spec.get("rule") in ("parallel_equals_solo", "distinct_at_least"):
        return RULES[spec["rule"]](Seen(tuple(answers), spec, tuple(solos)))
    if "timing" in spec:
        return [fault for limit in spec["timing"].items() for fault in _late(limit, answers)]
    return [fault for answer in answers for fault in _one(spec, answer)]


def _one(spec: Spec, answer: Answer) -> list[str]:
    if "if_status" in spec:
        wanted = spec["if_status"] if isinstance(spec["if_status"], list) else [spec["if_status"]]
        rest = {k: v for k, v in spec.items() if k not in ("if_status", "else")}
        chosen = rest if answer.status in wanted else spec.get("else")
        return _one(chosen, answer) if chosen else []
    key = next((key for key in SINGLE if key in spec), None)
    if key is None:
        raise KeyError(f"no such check: {_brief(spec)}")
    return SINGLE[key](spec, answer)


def _say(spec: Spec, actual: Any, ok: bool) -> list[str]:
    shown = "nothing there" if actual is MISSING else repr(actual)[:300]
    return [] if ok else [f"{_brief(spec)}: got {shown}"]


def _brief(spec: Spec) -> str:
    return json.dumps(spec, ensure_ascii=False)[:300]


def _test(spec: Spec, actual: Any) -> list[str]:
    return _say(spec, actual, holds(spec["op"], actual, spec.get("value")))


def _status(spec: Spec, answer: Answer) -> list[str]:
    wanted = spec["status"] if isinstance(spec["status"], list) else [spec["status"]]
    return [] if answer.status in wanted else [f"status {answer.status}, not {wanted}: {answer.text[:300]}"]


def _body(spec: Spec, answer: Answer) -> list[str]:
    return _say(spec, answer.text, holds(spec["body"], answer.text, spec["value"]))


def _header(spec: Spec, answer: Answer) -> list[str]:
    return _test(spec, answer.headers.get(spec["header"].lower()))


def _json_path(spec: Spec, answer: Answer) -> list[str]:
    return _test(spec, get(answer.json, spec["path"]))


def _names(spec: Spec, answer: Answer) -> list[str]:
    key = "events_raw" if "events_raw" in spec else "events"
    names = " ".join(e.name for e in answer.events if key == "events_raw" or e.name != "ping")
    return _say(spec, names, holds("match", names, spec[key]))


def _named(answer: Answer, name: str) -> list[Event]:
    return [event for event in answer.events if event.name == name]


def _chosen(spec: Spec, answer: Answer) -> list[Event]:
    events, which = _named(answer, spec["event"]), spec.get("which", "first")
    if which.startswith("first_with:"):
        path = which.partition(":")[2]
        events = [event for event in events if get(event.data, path) not in (MISSING, None)]
    return events[-1:] if which == "last" else events if which in ("all", "any") else events[:1]


def _event(spec: Spec, answer: Answer) -> list[str]:
    chosen = _chosen(spec, answer)
    if not chosen:
        return [f"{_brief(spec)}: no such event; there are {sorted({e.name for e in answer.events})}"]
    values = [get(event.data, spec["path"]) for event in chosen]
    results = [holds(spec["op"], value, spec.get("value")) for value in values]
    ok = any(results) if spec.get("which") == "any" else all(results)
    return _say(spec, values if len(values) > 1 else values[0], ok)


def _no_event(spec: Spec, answer: Answer) -> list[str]:
    return [f"there is a {spec['no_event']} event"] if _named(answer, spec["no_event"]) else []


def values(source: Spec, answer: Answer) -> list[Any]:
    """The values at `source["path"]` of its events, those under `[*]` one by one; a missing one is null."""
    found: list[Any] = []
    for event in _named(answer, source["event"]):
        if all(same(get(event.data, path), wanted) for path, wanted in source.get("where", {}).items()):
            value = get(event.data, source["path"])
            found.extend(value if "[*]" in source["path"] else [None if value is MISSING else value])
    return [value for value in found if value is not None or not source.get("skip_null")]


def joined(source: Spec, answer: Answer) -> str:
    """The texts at `source["path"]`, in order, as one."""
    return "".join(str(value) for value in values({**source, "skip_null": True}, answer))


def _join(spec: Spec, answer: Answer) -> list[str]:
    return _test(spec, joined(spec["join"], answer))


def _join_json(spec: Spec, answer: Answer) -> list[str]:
    text = joined(spec["join_json"], answer)
    return _say(spec, text, _parsed_kind(text) == spec["is"])


def _parsed_kind(text: str) -> str | None:
    try:
        return kind(json.loads(text))
    except ValueError:
        return None


def _values(spec: Spec, answer: Answer) -> list[str]:
    return _test(spec, values(spec["values"], answer))


def _set(spec: Spec, answer: Answer) -> list[str]:
    found: list[Any] = []
    for value in values(spec["set"], answer):
        if not any(same(value, other) for other in found):
            found.append(value)
    if spec["op"] != "eq":
        return _test(spec, found)
    ok = len(found) == len(spec["value"]) and all(any(same(v, f) for f in found) for v in spec["value"])
    return _say(spec, found, ok)


def _count(spec: Spec, answer: Answer) -> list[str]:
    source = spec["count"]
    found = [get(event.data, source["path"]) for event in _named(answer, source["event"])]
    return _test(spec, sum(holds(source["op"], value, source.get("value")) for value in found))


def _equal(spec: Spec, answer: Answer) -> list[str]:
    sides = [[get(e.data, side["path"]) for e in _chosen(side, answer)] for side in spec["equal"]]
    return _say(spec, sides, bool(sides[0]) and same(sides[0], sides[1]))


def _json_in(spec: Spec, answer: Answer) -> list[str]:
    text = get(answer.json, spec["json_in"])
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        return _say(spec, text, False)
    if "schema" not in spec:
        return _test(spec, value)
    faults = [fault.message for fault in jsonschema.Draft202012Validator(spec["schema"]).iter_errors(value)]
    return [f"{text!r} does not fit the schema: {faults[0]}"] if faults else []


def _rule(spec: Spec, answer: Answer) -> list[str]:
    try:
        return RULES[spec["rule"]](Seen((answer,), spec))
    except (KeyError, TypeError) as fault:
        return [f"{spec['rule']}: an event lacks {fault}"]


SINGLE: dict[str, Callable[[Spec, Answer], list[str]]] = {
    "status": _status, "header": _header, "body": _body, "events": _names, "events_raw": _names, "event": _event,
    "no_event": _no_event, "join": _join, "join_json": _join_json, "values": _values, "set": _set, "count": _count,
    "equal": _equal, "json_in": _json_in, "rule": _rule, "path": _json_path,
}  # fmt: skip


def _late(limit: tuple[str, float], answers: Sequence[Answer]) -> list[str]:
    name, most = limit
    if name == "total_ms_max":
        began, ended = min(a.began for a in answers), max(a.began + a.total_ms / 1000 for a in answers)
        found = [(ended - began) * 1000]
    else:
        found = [TIMES[name](answer) for answer in answers]
    return [f"{name}: {value:.0f} ms > {most} ms" for value in found if value > most]


def _longest_gap(answer: Answer) -> float:
    times = [event.at_ms for event in answer.events] if answer.anthropic else [at for at, _ in answer.chunks]
    marks = [answer.headers_ms, *times, answer.total_ms]
    return max(after - before for before, after in pairwise(marks))


TIMES: dict[str, Callable[[Answer], float]] = {
    "headers_ms_max": lambda answer: answer.headers_ms,
    "first_event_ms_max": lambda answer: answer.events[0].at_ms if answer.events else float("inf"),
    "gap_ms_max": _longest_gap,
    "each_ms_max": lambda answer: answer.total_ms,
}


def _term(text: str, answer: Answer) -> Any:
    text = text.strip()
    if text.lstrip("-").replace(".", "", 1).isdigit():
        return float(text)
    if text.startswith("last("):
        name, _, path = text[len("last(") :].partition(")")
        events = _named(answer, name)
        return get(events[-1].data, path.lstrip(".")) if events else MISSING
    return get(answer.json, text)


def side(text: str, steps: Steps) -> Any:
    """One side of a comparison: `STEP:PATH`, paths and numbers joined by `+`; a missing summand counts as 0."""
    step, _, expression = text.partition(":")
    terms = [_term(term, steps[int(step)][0]) for term in expression.split("+")]
    if len(terms) == 1:
        return None if terms[0] is MISSING else terms[0]
    return sum(0 if term in (MISSING, None) else term for term in terms)


def _sides(spec: Spec, steps: Steps) -> str:
    parts = spec.get("compare") or spec["compare_num"]
    return " against ".join(repr(side(part, steps))[:200] for part in (parts[0], parts[-1]))


def _compared(spec: Spec, steps: Steps) -> bool:
    if "compare" in spec:
        left, op, right = spec["compare"]
        return holds(op, side(left, steps), side(right, steps))
    left, right = (side(part, steps) for part in spec["compare_num"])
    return kind(left) == kind(right) == "number" and abs(left - right) <= spec["tol"]
