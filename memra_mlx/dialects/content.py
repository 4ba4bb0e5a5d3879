"""What all dialects say in the same way: pictures, call arguments, tool lists, notes of what was left out."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping

import msgspec

from memra_mlx.dialects.fields import brief, child, item
from memra_mlx.errors import ApiError, invalid
from memra_mlx.request import Image, Tool, ToolChoice

# What stands for a log probability of minus infinity, which JSON cannot say.
UNLIKELY = -9999.0
# The opaque reasoning state where none is sealed: never empty, or clients lose the reasoning.
UNSEALED = "memra-unsealed"
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")

_DATA_URL = re.compile(r"data:([\w/+.-]+)((?:;[\w=.+-]+)*),", re.ASCII | re.IGNORECASE)
_AFFINITY_HEADERS = ("x-session-affinity", "x-session-id", "session_id", "session-id", "x-claude-code-session-id")


class Notes:
    """Collects warnings: one a kind of thing, however often it occurs."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def add(self, kind: str, text: str) -> None:
        """Keep `text` unless something was noted for `kind`."""
        self._found.setdefault(kind, text)

    def skipped(self, at: str, kind: object) -> None:
        """A part of an unknown kind was left out of the prompt."""
        self.add(f"skipped {kind}", f"{at}: a part of type {brief(kind)} is not known here and was left out")

    @property
    def texts(self) -> tuple[str, ...]:
        """The warnings, in the order of first occurrence."""
        return tuple(self._found.values())


class CallIds:
    """Ids for calls and results in a history that lacks them: results answer the open calls in order."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._count = 0

    def called(self, given: str | None) -> str:
        """The id of a call: its own, or a made-up one."""
        self._count += 1
        found = given or f"call_{self._count}"
        self._open.append(found)
        return found

    def answered(self, given: str | None) -> str | None:
        """The id of the call that a result answers; None where it has no id and no call is open."""
        found = given or (self._open[0] if self._open else None)
        if found in self._open:
            self._open.remove(found)
        return found


def image(data: str, media_type: str, at: str) -> Image:
    """A picture from base64. Raises a 400 for another type or broken base64."""
    if media_type.lower() not in IMAGE_TYPES:
        raise invalid(at, f"{brief(media_type)} is not a supported image type; use {', '.join(IMAGE_TYPES)}")
    try:
        decoded = base64.b64decode(data.translate({10: None, 13: None}) if "\n" in data else data, validate=True)
    except (binascii.Error, ValueError) as fault:
        raise invalid(at, f"the image is not valid base64: {fault}") from fault
    if not decoded:
        raise invalid(at, "the image is empty")
    return Image(decoded, media_type.lower())


def image_url(url: str, at: str) -> Image:
    """A picture from a data URL. Raises a 400 for any other URL: this server fetches nothing."""
    head = _DATA_URL.match(url)
    if head is None or "base64" not in head[2].lower().split(";"):
        raise invalid(at, f"{brief(url)} is not fetched; send the image as data:image/png;base64,…")
    return image(url[head.end() :], head[1], at)


def arguments(value: str | Mapping[str, object] | None) -> str:
    """Call arguments from history as the JSON text of an object; what is none is kept whole under `input`."""
    if not isinstance(value, str):
        return msgspec.json.encode(value or {}).decode()
    if not value.strip():
        return "{}"
    try:
        is_object = isinstance(msgspec.json.decode(value), dict)
    except (msgspec.DecodeError, RecursionError):
        is_object = False
    return value if is_object else msgspec.json.encode({"input": value}).decode()


def unique(tools: Iterable[Tool], at: str) -> tuple[Tool, ...]:
    """The tools by name; a repetition is dropped. Raises a 400 where one name stands for two different tools."""
    found: dict[str, Tool] = {}
    for index, tool in enumerate(tools):
        if found.setdefault(tool.name, tool) != tool:
            raise invalid(child(item(at, index), "name"), f"{brief(tool.name)} is already the name of another tool")
    return tuple(found.values())


def check_choice(choice: ToolChoice, tools: tuple[Tool, ...], at: str) -> ToolChoice:
    """`choice`, if `tools` can satisfy it. Raises a 400 else."""
    offered = {tool.name for tool in tools}
    for name in choice.names:
        if name not in offered:
            raise invalid(at, f"the tool {brief(name)} is not in tools")
    if choice.mode == "required" and not tools:
        raise invalid(at, "a call is required, but no tools are offered")
    return choice


def described(description: str, grammar: tuple[str, str] | None) -> str:
    """What the model reads about a custom tool: its description, and the grammar of its input."""
    if grammar is None:
        return description
    told = f"The input is plain text, not JSON. It must match this {grammar[0]} grammar:\n{grammar[1]}"
    return f"{description}\n\n{told}" if description else told


def affinity(headers: Mapping[str, str], *hints: str | None) -> str | None:
    """The first hint at which requests belong together: a body field, else a session header."""
    named = (headers.get(name) for name in _AFFINITY_HEADERS)
    return next((hint for hint in (*hints, *named) if hint), None)


def note_for(fault: ApiError) -> str:
    """What the model reads in place of a picture in a tool result that can't be used."""
    return f"[an image was left out here: {fault.message}]"
