"""Token ids → text as they come, exact to the byte: a character spread over several tokens comes with its last one."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import StreamingDetokenizer, TokenizerWrapper


class Detokenizer(Protocol):
    """One stream of tokens."""

    def add(self, token: int) -> str:
        """The text that is whole with this token."""

    def finish(self) -> str:
        """What was held back."""


class Vocabulary:
    """The tokens of a model, and after them `extra` ones that stand for raw bytes."""

    def __init__(self, tokenizer: TokenizerWrapper, extra: Sequence[bytes] = ()):
        self._tokenizer = tokenizer
        self._extra = tuple(extra)
        self._base = len(tokenizer)
        self._added: dict[int, bytes] = {i: t.content.encode() for i, t in tokenizer.added_tokens_decoder.items()}
        self.size = self._base + len(self._extra)

    def detokenizer(self) -> Detokenizer:
        """A fresh detokenizer."""
        if self._extra:
            return _BytePieces(self, trim=False)
        table, trim = self._table
        return _TextPieces(self._tokenizer.detokenizer) if table is None else _BytePieces(self, trim)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token on its own; empty for an id that the vocabulary doesn't hold."""
        if token >= self._base:
            return self._extra[token - self._base] if token < self.size else b""
        if token in self._added:
            return self._added[token]
        table, _ = self._table
        if table is not None:
            return table[token]
        return str(self._tokenizer.decode([token])).encode()

    def token_text(self, token: int) -> str:
        """Its text; broken characters are replaced."""
        return self.token_bytes(token).decode("utf-8", "replace")

    @cached_property
    def _table(self) -> tuple[list[bytes] | None, bool]:
        return _byte_table(self._tokenizer)


def _byte_table(tokenizer: TokenizerWrapper) -> tuple[list[bytes] | None, bool]:
    """The bytes of every token where mlx-lm knows the decoder, and whether the first space is to be trimmed."""
    from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, SPMStreamingDetokenizer, _byte_decoder

    stream = tokenizer.detokenizer
    if isinstance(stream, BPEStreamingDetokenizer):
        known = _byte_decoder()
        return [b"".join(bytes([known[c]]) if c in known else c.encode() for c in t) for t in stream.tokenmap], False
    if isinstance(stream, SPMStreamingDetokenizer):
        return [piece.replace("▁".encode(), b" ") for piece in stream.tokenmap], bool(stream.trim_space)
    return None, False


class _BytePieces:
    def __init__(self, vocabulary: Vocabulary, trim: bool):
        self._vocabulary = vocabulary
        self._trim = trim
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._trimmed(self._decoder.decode(self._vocabulary.token_bytes(token)))

    def finish(self) -> str:
        return self._trimmed(self._decoder.decode(b"", True))

    def _trimmed(self, text: str) -> str:
        if self._trim and text:
            self._trim = False
            return text.removeprefix(" ")
        return text


class _TextPieces:
    def __init__(self, stream: StreamingDetokenizer):
        self._stream = stream

    def add(self, token: int) -> str:
        self._stream.add_token(token)
        return str(self._stream.last_segment)

    def finish(self) -> str:
        self._stream.finalize()
        return str(self._stream.last_segment)
