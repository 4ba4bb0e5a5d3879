"""Text to ids and ids to text, with one law: control tokens come from the template alone.

Content is *shielded* before it is rendered: a private-use character goes into every literal of a control token, so that
the template carries it along whatever it does (trim, escape, JSON-encode) and no literal is whole. Rendered text is cut
at the literals that are whole, which only the template can have written; what lies between is unshielded and encoded
by a tokenizer that knows no control tokens.
"""

from __future__ import annotations

import json
import logging
import re
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BREAK, ESCAPE = "\uf4c7", "\uf4c8"
_ESCAPES = {BREAK: ESCAPE + "0", ESCAPE: ESCAPE + "1"}
_HIDDEN = re.compile(f"{ESCAPE}[01]|{BREAK}")
_OWN = re.compile(f"[{BREAK}{ESCAPE}]")
_ASCII_FORMS = re.compile(r"\\u(f4c[78])", re.IGNORECASE)
# Words that templates look up in a tool; a shielded key would hide the field from them.
_STRUCTURE = frozenset(
    re.findall(
        r"\S+",
        "type function name description parameters properties required items enum anyOf oneOf allOf default title "
        "format additionalProperties nullable minimum maximum const return input_schema $ref $defs",
    )
)
_MEMO_CHARS = 8_000_000
_log = logging.getLogger(__name__)


class Shield:
    """Makes content harmless before rendering. `literals` are the spellings of all control tokens."""

    def __init__(self, literals: tuple[str, ...]):
        self._all = "\n".join(literals)
        self._longest = max(map(len, literals), default=0)
        by_length = sorted(literals, key=len, reverse=True)
        self._whole = re.compile("|".join(map(re.escape, by_length)) or "(?!)")
        self._heads = tuple({lit[:n] for lit in literals for n in range(1, len(lit))})
        self._tails = tuple({lit[n:] for lit in literals for n in range(1, len(lit))})
        self._first = frozenset(literal[0] for literal in literals)
        self._last = frozenset(literal[-1] for literal in literals)

    def text(self, text: str) -> str:
        """`text` in a form that cannot hold, begin, end or fill the middle of a control token."""
        if not text:
            return text
        if BREAK in text or ESCAPE in text:
            text = _OWN.sub(lambda m: _ESCAPES[m[0]], text)
        text = self._whole.sub(lambda m: m[0][0] + BREAK + m[0][1:], text)
        starts = not self._last.isdisjoint(text[: self._longest]) and text.startswith(self._tails)
        ends = not self._first.isdisjoint(text[-self._longest :]) and text.endswith(self._heads)
        inside = len(text) < self._longest and text in self._all
        return f"{BREAK if starts or inside else ''}{text}{BREAK if ends else ''}" if starts or ends or inside else text

    def tree(self, value: Any) -> Any:
        """The same for every string and key of a JSON value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {k if k in _STRUCTURE else self.text(k): self.tree(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        return value


def unshield(text: str) -> str:
    """The text without the marks of `Shield`."""
    if BREAK not in text and ESCAPE not in text:
        return text
    return _HIDDEN.sub(lambda m: "" if m[0] == BREAK else (BREAK, ESCAPE)[int(m[0][1])], text)


def plain_marks(text: str) -> str:
    """`text` with marks that a template wrote as JSON escapes turned back into characters."""
    return _ASCII_FORMS.sub(lambda m: chr(int(m[1], 16)), text)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids, and the offsets at which the template's control tokens stand, as {offset: id} in rising order."""

    ids: list[int]
    controls: dict[int, int] = field(default_factory=dict)


class Encoder:
    """Encodes shielded, rendered text. Pieces between control tokens are remembered, so that a conversation that grows
    only pays for what is new. Safe to call from several threads."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, memo_chars: int = _MEMO_CHARS):
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self._ids = {token.content: index for index, token in added.items()}
        self.shield = Shield(tuple(literal for literal in self._ids if literal))
        self._forbidden = frozenset(self._ids.values()) - {tokenizer.unk_token_id}
        self._cut = re.compile("|".join(_pattern(t) for t in sorted(added.values(), key=_longest_first)) or "(?!)")
        self._plain = _without_added_tokens(tokenizer)
        self._memo = _Memo(memo_chars)
        self._lock = Lock()

    def encode(self, text: str) -> Encoded:
        """Ids of rendered text, special tokens added by nobody but the template."""
        if self._plain is None:
            return self._encode_whole(text)
        ids: list[int] = []
        controls: dict[int, int] = {}
        begin = 0
        for match in self._cut.finditer(text):
            ids.extend(self._piece(text[begin : match.start()]))
            controls[len(ids)] = self._ids[match[0].strip() if match[0] not in self._ids else match[0]]
            ids.append(controls[len(ids)])
            begin = match.end()
        ids.extend(self._piece(text[begin:]))
        return Encoded(ids, controls)

    def settle(self, sample: str | None) -> None:
        """Compare with the model's own tokenizer on rendered text; fall back to encoding in one go if they differ."""
        if self._plain is not None and sample is not None and self.encode(sample).ids != self._reference(sample):
            _log.info("tokens: pieces differ from the tokenizer's own encoding, encoding prompts in one go")
            self._plain = None

    def _encode_whole(self, text: str) -> Encoded:
        # No part holds a whole literal of the content, so the tokenizer finds the template's control tokens only.
        with self._lock:
            parts = [unshield(part) for part in text.split(BREAK)]
            ids = [i for part in parts if part for i in self._reference(part)]
        return Encoded(ids, {at: i for at, i in enumerate(ids) if i in self._forbidden})

    def _reference(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _piece(self, text: str) -> array[int]:
        if not text:
            return array("I")
        found = self._memo.get(text)
        if found is None:
            found = array("I", self._encode_plain(unshield(text)))
            self._memo.put(text, found)
        return found

    def _encode_plain(self, text: str) -> list[int]:
        assert self._plain is not None
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        if self._forbidden.isdisjoint(ids):
            return ids
        return [i for char in text for i in self._plain.encode(char, add_special_tokens=False).ids]


class _Memo:
    """Least recently used pieces, bounded in characters."""

    def __init__(self, chars: int):
        self._room = chars
        self._items: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = Lock()

    def get(self, text: str) -> array[int] | None:
        with self._lock:
            found = self._items.get(text)
            if found is not None:
                self._items.move_to_end(text)
            return found

    def put(self, text: str, ids: array[int]) -> None:
        with self._lock:
            if text in self._items:
                return
            self._items[text] = ids
            self._room -= len(text)
            while self._room < 0 and self._items:
                self._room += len(self._items.popitem(last=False)[0])


def _longest_first(token: Any) -> int:
    return -len(str(token.content))


def _pattern(token: Any) -> str:
    literal = re.escape(str(token.content))
    return (r"\s*" if token.lstrip else "") + literal + (r"\s*" if token.rstrip else "")


def _without_added_tokens(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """The tokenizer's own pipeline with no added tokens; None where there is no such pipeline."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return None
    description = json.loads(backend.to_str())
    if any(token["single_word"] for token in description["added_tokens"]):
        return None
    return Tokenizer.from_str(json.dumps(description | {"added_tokens": [], "post_processor": None}))
