"""All that the server knows of a model's text side: its tokenizer, its template, its markers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, assert_never

from memra_mlx.engine.protocol import Think
from memra_mlx.errors import ApiError, invalid
from memra_mlx.prompt import effort
from memra_mlx.prompt.conversation import Turn, field_of, turns
from memra_mlx.prompt.detokenizer import Vocabulary
from memra_mlx.prompt.exact import closed, until
from memra_mlx.prompt.grammar import Grammars
from memra_mlx.prompt.markers import Markers, find_markers
from memra_mlx.prompt.parser import OutputParser
from memra_mlx.prompt.probe import Boundaries, boundaries, probe, sample, switches_history
from memra_mlx.prompt.sealed import Frame, Splice
from memra_mlx.prompt.shape import dicts, fit, narrower, tool_dicts
from memra_mlx.prompt.suffix import Known, Suffixes, call_end
from memra_mlx.prompt.template import REFUSALS, Template
from memra_mlx.prompt.tokens import Encoded, Encoder, plain_marks
from memra_mlx.prompt.traits import TemplateTraits
from memra_mlx.request import Conversation, RawPrompt, Request, Thinking

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from memra_mlx.thread import Thread

# The end of a turn that is to be continued: no template trims or escapes it.
_CUT = "\uf4c9"
_TAIL = 64  # tokens that are looked at for how an answer ended
_NOTHING = Known()
_NONE: Mapping[int, list[int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine gets. `segment_ends` are offsets into `ids` (exclusive, rising, the last is the end); `think` is
    how the model marks reasoning, None where it has no marks or the prompt is raw; the
    answer's turn begins at offset `opened` (-1: it is raw); `thread` follows the answer."""

    ids: list[int]
    segment_ends: list[int]
    think: Think | None
    warnings: tuple[str, ...] = ()
    opened: int = -1
    thread: Thread | None = None


class TextModel:
    """Turns requests into prompts and generated tokens into events. `tool_style` names the format of its calls, None
    where it has none; `thinks` says that it reasons; `vocab_size` counts `extra_tokens` too, which are in `added`."""

    def __init__(self, tokenizer: TokenizerWrapper, extra_tokens: Sequence[bytes] = ()):
        self._tokenizer = tokenizer
        self.added = tuple(extra_tokens)
        self._encoder = Encoder(tokenizer._tokenizer)
        self._vocabulary = Vocabulary(tokenizer, extra_tokens)
        self._template = Template(tokenizer)
        self.traits: TemplateTraits = probe(self._template)
        self._encoder.settle(sample(self._template, self.traits))
        marks = tuple(filter(None, (tokenizer.think_start, tokenizer.think_end)))
        self._boundaries: Boundaries = boundaries(self._template, self.traits, self._encoder, marks)
        self._markers: Markers = find_markers(tokenizer, self._boundaries.generation)
        think_ids = self._ids_of(self._markers.think_start), self._ids_of(self._markers.think_end)
        self._think_ids = think_ids if all(think_ids) else None
        self.eos_ids: tuple[int, ...] = tuple(sorted(tokenizer.eos_token_ids))
        self.vocab_size: int = self._vocabulary.size
        self.tool_style: str | None = self._markers.style
        self.thinks: bool = self._think_ids is not None and (
            self.traits.switch is not None
            or bool(self.traits.efforts)
            or self.traits.reasoning
            or self._is_open(self._boundaries.generation)
        )
        self._grammars = Grammars(tokenizer, self._markers, self.thinks)
        self._switches_history = switches_history(self._template, self.traits)
        turn_ends = [self._vocabulary.token_text(i) for i in self.eos_ids]
        begins = tuple(self._vocabulary.token_text(i) for i in self._boundaries.openers)
        frame = Frame(begins, self._boundaries.generation, self._markers.think_start, self._markers.think_end)
        self._splice = Splice(self._render, self._encoder, frame)
        self._suffixes = Suffixes(self._render, call_end(tokenizer, self._markers.style), turn_ends)

    @classmethod
    def load(cls, path: Path, *, chat_template: str | None = None, extra_tokens: Sequence[bytes] = ()) -> TextModel:
        """Load from a model folder. `chat_template` replaces the model's own; token id `len(tokenizer) + i` stands for
        the bytes `extra_tokens[i]`. Raises OSError or ValueError where the folder holds no usable tokenizer."""
        import mlx.core as mx

        # Importing mlx_lm makes a stream on the default device, and this process computes nothing.
        mx.set_default_device(mx.cpu)
        from mlx_lm.utils import load_config, load_tokenizer

        extra = {"chat_template": chat_template} if chat_template is not None else None
        eos = load_config(path).get("eos_token_id")
        tokenizer: TokenizerWrapper = load_tokenizer(path, extra, eos_token_ids=eos)
        return cls(tokenizer, extra_tokens)

    def prompt(self, request: Request) -> Prompt:
        """Render and tokenise. Raises a 400 that names the field which this model can't take."""
        match request.input:
            case RawPrompt(content=content):
                ids = self._raw(content)
                return Prompt(ids, [len(ids)], None)
            case Conversation():
                return self._chat(request, request.input)
            case _:
                assert_never(request.input)

    def parser(self, request: Request, prompt: Prompt, mint: Callable[[], str]) -> OutputParser:
        """A parser for one generation behind `prompt`. `mint` makes a fresh call id."""
        opened = prompt.think is not None and prompt.think.opened
        return OutputParser(self._vocabulary, self._markers, request, mint, opened=opened)

    def grammar(self, request: Request, prompt: Prompt, *, all_tools: bool = False) -> str:
        """The grammar that the answer must follow, "" where it is free. `all_tools`: calls of all tools are
        constrained, not of strict ones alone. Raises a 400 that names the field which can't be honoured."""
        opened = prompt.think is not None and prompt.think.opened
        return self._grammars.of(request, opened=opened, all_tools=all_tools)

    def answer_ids(self, tokens: Sequence[int], visible: int, cut: int | None, calls: bool) -> list[int] | None:
        """The exact tokens of an answer, of which `visible` were generated wholly, up to character `cut` if it was cut
        there; None where it `calls` and its block of calls is open and can't be closed."""
        if cut is not None:
            return until(tokens, cut, self._vocabulary, self._plain_ids)
        ids = list(tokens[:visible])
        return closed(ids, self.tool_style, self._vocabulary, self._plain_ids) if calls else ids

    def switches(self, request: Request) -> str:
        """How the request changes the rendering of what was said before, beside its messages and tools."""
        if not self._switches_history:
            return ""
        return json.dumps(effort.switches(request.thinking, self.traits), sort_keys=True)

    @property
    def template(self) -> str:
        """The text of the chat template; empty where the model brings a program instead."""
        text = self._tokenizer.chat_template
        return text if isinstance(text, str) else json.dumps(text or "")

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a prompt with its control tokens, as the model reads it."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def _raw(self, content: str | tuple[int, ...]) -> list[int]:
        if isinstance(content, str):
            ids = list(self._tokenizer.encode(content))
        else:
            ids = list(content)
            outside = next((i for i in ids if not 0 <= i < self.vocab_size), None)
            if outside is not None:
                raise invalid("prompt", f"token id {outside} is outside the vocabulary of {self.vocab_size}")
        if not ids and self._tokenizer.bos_token_id is not None:
            ids = [self._tokenizer.bos_token_id]
        if not ids:
            raise invalid("prompt", "it is empty, and this model has no token to begin a text with")
        return ids

    def _chat(self, request: Request, conversation: Conversation) -> Prompt:
        spoken, warnings = turns(conversation.messages, request.dialect)
        self._check_tools(request)
        spoken, continued = _continuation(spoken, request)
        text = self._render(spoken, request, continued)
        text = text if continued else text + self._closing(text, request.thinking)
        return self._finished(text, self._encoder.encode(text), request, warnings)

    def continued(
        self, request: Request, spoken: Sequence[Turn], at: int, known: Known, sealed: Mapping[int, list[int]] = _NONE
    ) -> Prompt | None:
        """The prompt that goes on from the exact tokens of everything before turn `at`, where an answer ends. The later
        turns numbered in `sealed` begin with those tokens. None where the template doesn't allow it."""
        self._check_tools(request)
        told, continued = _continuation(list(spoken), request)
        if at > len(told) - continued or not all(n < len(told) - continued and self.splices(told[n]) for n in sealed):
            return None
        tail = b"".join(map(self._vocabulary.token_bytes, known.ids[-_TAIL:])).decode("utf-8", "replace")
        marked = self._splice.marked(told, sealed)
        text = (
            self._suffixes.of(marked, at, request, continued, tail) if at else self._render(marked, request, continued)
        )
        if text is None:
            return None
        text = text if continued else text + self._closing(text, request.thinking)
        encoded = self._splice.encode(text, [told[n] for n in sorted(sealed)], [sealed[n] for n in sorted(sealed)])
        return self._finished(text, encoded, request, (), known) if encoded else None

    def splices(self, turn: Turn) -> bool:
        """Whether sealed tokens can begin this turn."""
        return self._splice.takes(turn)

    def _finished(
        self, text: str, encoded: Encoded, request: Request, warnings: Sequence[str], known: Known = _NOTHING
    ) -> Prompt:
        base = len(known.ids)
        ids = [*known.ids, *encoded.ids]
        opened = [base + at for at, i in encoded.controls.items() if base + at and i in self._boundaries.openers]
        ends = sorted({*(end for end in known.ends if end < base), *opened, len(ids)})
        warnings = (*warnings, *self._thinking_warnings(request.thinking))
        return Prompt(ids, ends, self._think(text, request), warnings, max(opened, default=len(ids)))

    def _check_tools(self, request: Request) -> None:
        wanted = request.tools and request.tool_choice.mode != "none"
        if wanted and (self.tool_style is None or not self.traits.tools):
            raise invalid("tools", "this model's chat template has no tool calls; send no tools, or use another model")

    def _render(self, spoken: Sequence[Turn], request: Request, continued: bool) -> str:
        custom = frozenset(tool.name for tool in request.tools if tool.custom)
        shield = self._encoder.shield
        tools = shield.tree(tool_dicts(request.tools)) if request.tools else []
        variables = effort.switches(request.thinking, self.traits)
        reason: BaseException | None = None
        for traits in (self.traits, *narrower(self.traits)):
            messages = dicts(fit(spoken, traits), traits, shield, custom)
            try:
                text = self._template.render(messages, tools, generate=not continued, **variables)
            except REFUSALS as error:
                reason = reason or error
                continue
            text = plain_marks(text) if traits.ascii_json else text
            return text[: text.rfind(_CUT)] if continued else text
        raise _refused(request, reason)

    def _is_open(self, text: str) -> bool:
        """Whether text ends inside a reasoning segment."""
        start, end = self._markers.think_start, self._markers.think_end
        return bool(start and end) and text.rfind(str(start)) > text.rfind(str(end))

    def _closing(self, text: str, thinking: Thinking) -> str:
        """An empty reasoning segment, for a model that reasons unless the prompt has done so already."""
        if effort.wanted(thinking) is not False or not self.thinks or self._switchable():
            return ""
        if self._is_open(text):
            return f"{'' if text.endswith(chr(10)) else chr(10)}\n{self._markers.think_end}\n\n"
        if text.rstrip().endswith(str(self._markers.think_end)):
            return ""
        return f"{self._markers.think_start}\n\n{self._markers.think_end}\n\n"

    def _switchable(self) -> bool:
        return self.traits.switch is not None or bool(self.traits.efforts)

    def _think(self, text: str, request: Request) -> Think | None:
        if self._think_ids is None:
            return None
        start, end = self._think_ids
        budget = -1 if request.thinking.budget is None else request.thinking.budget
        return Think(start_ids=start, end_ids=end, opened=self._is_open(text), budget=budget)

    def _thinking_warnings(self, thinking: Thinking) -> list[str]:
        on = effort.wanted(thinking)
        if on and not self.thinks:
            return ["thinking was ignored: this model does not reason"]
        if on is False and self.traits.efforts and self.traits.switch is None and "none" not in self.traits.efforts:
            return [f"this model always reasons: effort {self.traits.efforts[0]} was used"]
        return []

    def _plain_ids(self, text: str) -> list[int]:
        return self._encoder.encode(self._encoder.shield.text(text)).ids

    def _ids_of(self, marker: str | None) -> list[int]:
        return self._encoder.encode(marker).ids if marker else []


def _continuation(spoken: list[Turn], request: Request) -> tuple[list[Turn], bool]:
    """An answer that the client began is marked for the cut behind it."""
    last = spoken[-1] if spoken else Turn("user")
    if last.role != "assistant":
        return spoken, False
    if last.calls:
        named = ", ".join(call.id for call in last.calls)
        raise invalid(field_of(request.dialect), f"the last turn calls a tool ({named}); send its result with it")
    if request.dialect == "responses":
        return spoken, False
    if not last.text and len(spoken) > 1:
        return spoken[:-1], False
    return [*spoken[:-1], replace(last, text=last.text + _CUT)], True


def _refused(request: Request, reason: BaseException | None) -> ApiError:
    words = str(reason) or type(reason).__name__
    return invalid(field_of(request.dialect), f"the model's chat template refuses this conversation: {words}")
