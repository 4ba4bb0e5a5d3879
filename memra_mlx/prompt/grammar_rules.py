"""The rules of one grammar as they are written, and what it is to allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memra_mlx.prompt.grammar_marks import ANY, Marks
from memra_mlx.prompt.grammar_schema import Schema

FREE_SCHEMA = Schema({"type": "object"})


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool that may be called. Its arguments follow `schema` (None: any object), or its one input `grammar`."""

    name: str
    schema: Schema | None = None
    grammar: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What an answer may be: JSON by `schema`, calls of `offers`, and with `free` any text around calls. `reasoning`:
    the prompt has begun it, the answer may, or there is none. `several`: calls may follow each other."""

    offers: tuple[Offer, ...]
    schema: Schema | None
    free: bool
    several: bool
    reasoning: Literal["begun", "may", "none"]


class Rules:
    """Collects rules; each gets a name of its own."""

    def __init__(self, marks: Marks):
        self.marks = marks
        self._lines: list[str] = []
        self._names: dict[str, str] = {}

    def add(self, kind: str, body: str, options: str = "") -> str:
        """A rule, or a terminal if `kind` is in capitals; returns its name. Equal ones are written once."""
        key = f"{options}: {body}"
        if key not in self._names:
            self._names[key] = f"{kind}_{len(self._names)}"
            self._lines.append(f"{self._names[key]}{key}")
        return self._names[key]

    def declare(self, kind: str) -> str:
        """The name of a rule that `define` gives a body, for one that refers to itself."""
        name = f"{kind}_{len(self._names)}"
        self._names[name] = name
        return name

    def define(self, name: str, body: str) -> None:
        """The body of a declared rule."""
        self._lines.append(f"{name}: {body}")

    def text(self, start: str) -> str:
        """The grammar whose answers are `start`."""
        return "\n".join((f"start: {start}", f"ANY: {ANY}", *self._lines, ""))
