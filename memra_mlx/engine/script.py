"""What a scripted engine says: a JSON file, parsed once into typed entries.

The server and the scripted process both read the file. Word i of `vocabulary` is token `base + i`, where `base` is the
size of the real tokenizer, with which prompts are tokenised.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from memra_mlx.fixtures import TEMPLATES
from memra_mlx.request import flat_name

ToolFormat = Literal["hermes", "xml-function"]
CONTEXT = 32768
_DEADLY = ("kill_thread", "hang")


@dataclass(frozen=True, slots=True)
class Say:
    """`count` tokens of the same bytes, each after `delay_s`."""

    data: bytes
    count: int = 1
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Break:
    """Something goes wrong; if `times` is set, only so often."""

    kind: Literal["raise", "raise_in_prefill", "kill_thread", "hang"]
    times: int | None = None

    @property
    def deadly(self) -> bool:
        """The process does not outlive it: it dies, or is killed because it hangs."""
        return self.kind in _DEADLY


Entry = Say | Break
Turn = tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """`turns`: one for each request in order of arrival, then the last one again. `context` in tokens."""

    turns: tuple[Turn, ...]
    prefill_s: float = 0.0
    load_s: float = 0.0
    context: int = CONTEXT
    template: str | None = None
    tool_format: ToolFormat = "hermes"

    def chat_template(self) -> str | None:
        """The Jinja text of what it asks for; None is the model's own template, which speaks hermes."""
        kind = self.template or (None if self.tool_format == "hermes" else self.tool_format)
        return None if kind is None else _template(kind).read_text(encoding="utf-8")

    def turn(self, number: int, generation: int) -> Turn:
        """The turn of the request `number` (from 0) of the process `generation` (from 1).

        A turn that ends its process is used up by it: the next process begins with the turn after it.
        """
        deadly = [i for i, turn in enumerate(self.turns) if any(isinstance(e, Break) and e.deadly for e in turn)]
        used = deadly[: generation - 1]
        first = used[-1] + 1 if used else 0
        return self.turns[min(first + number, len(self.turns) - 1)]


def load(path: Path) -> Script:
    """Read a script. Raises ValueError naming the file and the entry that is not understood."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse(needs: Mapping[str, Any]) -> Script:
    """Parse the object `needs` of a case. Keys that belong to the server are left out. Raises ValueError."""
    if not isinstance(needs, Mapping):
        raise ValueError("a script is a JSON object with the key `script` or `script_turns`")
    tool_format = needs.get("tool_format", "hermes")
    if tool_format not in ("hermes", "xml-function"):
        raise ValueError(f"tool_format: {tool_format!r} is not known; accepted: hermes, xml-function")
    template = needs.get("template")
    if template is not None and not _template(template).is_file():
        kinds = sorted(file.stem for file in TEMPLATES.glob("*.jinja"))
        raise ValueError(f"template: {template!r} is not known; accepted: {', '.join(kinds)}")
    turns = needs.get("script_turns") or [needs.get("script", [])]
    return Script(
        turns=tuple(tuple(_entry(raw, tool_format) for raw in turn) for turn in turns),
        prefill_s=float(needs.get("prefill_s", 0)),
        load_s=float(needs.get("load_s", 0)),
        context=int(needs.get("ctx", CONTEXT)),
        template=template,
        tool_format=tool_format,
    )


def vocabulary(script: Script) -> list[bytes]:
    """The distinct byte strings of the script, in order of first appearance."""
    return list(dict.fromkeys(entry.data for turn in script.turns for entry in turn if isinstance(entry, Say)))


def _template(kind: str) -> Path:
    return TEMPLATES / f"{Path(kind).name}.jinja"


def _entry(raw: str | dict[str, Any], tool_format: ToolFormat) -> Entry:
    match raw:
        case str():
            return Say(raw.encode())
        case {"bytes": str(digits)}:
            return Say(bytes.fromhex(digits))
        case {"repeat": [str(text), int(count)]}:
            return Say(text.encode(), count, raw.get("delay_ms", 0) / 1000)
        case {"call": {"tool": str(tool), "arguments": dict(arguments)}}:
            return Say(_call(tool, arguments, tool_format).encode())
        case {"fault": ("raise" | "raise_in_prefill" | "kill_thread") as kind}:
            return Break(kind, raw.get("times"))
        case {"hang": True}:
            return Break("hang", raw.get("times"))
    raise ValueError(f"script: {json.dumps(raw)} is not understood")


def _call(tool: str, arguments: Mapping[str, Any], tool_format: ToolFormat) -> str:
    """A call as a model writes it; `namespace/name` is called by the name that the server shows to the model."""
    namespace, _, inner = tool.rpartition("/")
    name = flat_name(namespace, inner) if namespace else inner
    if tool_format == "hermes":
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
    lines = [f"<tool_call>\n<function={name}>", *_parameters(arguments), "</function>\n</tool_call>"]
    return "\n".join(lines)


def _parameters(arguments: Mapping[str, Any]) -> Iterator[str]:
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"<parameter={key}>\n{text}\n</parameter>"
