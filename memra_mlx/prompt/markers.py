"""Which markers a model puts into its output, as a table: state → (marker, next state)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from memra_mlx.prompt.calls import CallReader, Toolbox, WholeReader, parse_harmony
from memra_mlx.prompt.finder import Finder
from memra_mlx.prompt.json_calls import JsonReader
from memra_mlx.prompt.xml_calls import XmlReader

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

State = Literal["normal", "reasoning", "tool", "header"]
Edges = tuple[tuple[str, State], ...]

_STREAMING: dict[str, Callable[[str, Toolbox], CallReader]] = {"json_tools": JsonReader, "qwen3_coder": XmlReader}
# gpt-oss: each message of a turn has a header that names its channel or the function it goes to.
_HARMONY_START = "<|start|>assistant"
_HARMONY: dict[State, Edges] = {
    "header": (
        ("<|channel|>analysis<|message|>", "reasoning"),
        ("<|channel|>final<|message|>", "normal"),
        ("<|channel|>commentary<|message|>", "normal"),
        ("to=functions.", "tool"),
    ),
    "reasoning": (("<|end|>", "header"),),
    "normal": (("<|end|>", "header"), ("<|return|>", "normal")),
}


@dataclass(frozen=True, slots=True)
class Table:
    """The edges of every state, with the finders compiled from them."""

    edges: dict[State, dict[str, State]]
    finders: dict[State, Finder]

    @classmethod
    def of(cls, edges: dict[State, Edges]) -> Table:
        """Later edges win where a marker stands twice."""
        tables = {state: dict(pairs) for state, pairs in edges.items()}
        return cls(tables, {state: Finder(pairs) for state, pairs in tables.items()})


@dataclass(frozen=True, slots=True)
class Markers:
    """A model's output format. `with_tools` and `without` are its tables; `reader` begins to read a call block; `style`
    is the name of the tool format, None where there is none."""

    think_start: str | None
    think_end: str | None
    start: State
    with_tools: Table
    without: Table
    style: str | None
    reader: Callable[[Toolbox], CallReader] | None


def find_markers(tokenizer: TokenizerWrapper, generation: str) -> Markers:
    """From what mlx-lm knows of the tokenizer; harmony, which it doesn't know, from `generation`, the text that the
    template writes before an answer."""
    if generation.endswith(_HARMONY_START) and not tokenizer.has_tool_calling:
        reader = partial(WholeReader, parse_harmony, "<|call|>")
        without = _without_tools(_HARMONY)
        start, end = "<|channel|>analysis<|message|>", "<|end|>"
        return Markers(start, end, "header", Table.of(_HARMONY), Table.of(without), "harmony", reader)
    edges = _edges(tokenizer)
    start_state: State = tokenizer.response_initial_state or "normal"  # type: ignore[assignment]
    style = tokenizer.tool_parser.__module__.rpartition(".")[2] if tokenizer.has_tool_calling else None
    return Markers(
        tokenizer.think_start,
        tokenizer.think_end,
        start_state,
        Table.of(edges),
        Table.of(_without_tools(edges)),
        style,
        _reader(tokenizer, style) if style else None,
    )


def _edges(tokenizer: TokenizerWrapper) -> dict[State, Edges]:
    normal: list[tuple[str, State]] = [(mark, "normal") for mark in tokenizer.structural_markers]
    reasoning: list[tuple[str, State]] = []
    if tokenizer.has_thinking:
        # A mark that changes nothing is dropped: marks never reach the client.
        normal += [(tokenizer.think_start, "reasoning"), (tokenizer.think_end, "normal")]
        reasoning += [(tokenizer.think_end, "normal"), (tokenizer.think_start, "reasoning")]
    moves: dict[State, list[tuple[str, State]]] = tokenizer.response_transitions  # type: ignore[assignment]
    if tokenizer.has_tool_calling:
        reasoning += [(tokenizer.tool_call_start, "tool")]
        # A response format that leads to calls says itself where they start.
        if not any(to == "tool" for pairs in moves.values() for _, to in pairs):
            normal += [(tokenizer.tool_call_start, "tool")]
    edges: dict[State, list[tuple[str, State]]] = {"normal": normal, "reasoning": reasoning, "header": []}
    for state, pairs in moves.items():
        edges[state].extend(pairs)
    return {state: tuple(pairs) for state, pairs in edges.items()}


def _without_tools(edges: dict[State, Edges]) -> dict[State, Edges]:
    return {state: tuple(pair for pair in pairs if pair[1] != "tool") for state, pairs in edges.items()}


def _reader(tokenizer: TokenizerWrapper, style: str) -> Callable[[Toolbox], CallReader]:
    if style in _STREAMING:
        return partial(_STREAMING[style], tokenizer.tool_call_end)
    return partial(WholeReader, tokenizer.tool_parser, tokenizer.tool_call_end)
