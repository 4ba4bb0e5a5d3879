"""A model's tokens in llguidance's form, from its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer, TokenizerWrapper

from memra_mlx.prompt.grammar_marks import is_special


def load_tokens(path: Path, vocabulary: int, eos_ids: Sequence[int]) -> LLTokenizer:
    """The tokens of the model at `path`, for logits of `vocabulary` entries. Raises OSError or ValueError."""
    file = path / "tokenizer.json"
    if file.is_file():
        settings = json.loads(file.read_text(encoding="utf-8"))
        _add_missing(settings, path / "tokenizer_config.json")
        return LLTokenizer(json.dumps(settings), n_vocab=vocabulary, eos_token=list(eos_ids))
    return LLTokenizer(TokenizerWrapper(_Bytes(path, vocabulary, eos_ids)), n_vocab=vocabulary, eos_token=list(eos_ids))


def _add_missing(settings: dict[str, Any], config: Path) -> None:
    """Added tokens that only tokenizer_config.json has."""
    settings["truncation"] = settings["padding"] = None
    if not config.is_file():
        return
    listed = json.loads(config.read_text(encoding="utf-8")).get("added_tokens_decoder") or {}
    added: list[dict[str, Any]] = settings.setdefault("added_tokens", [])
    known = {token["id"] for token in added}
    added.extend({"id": int(id), **token} for id, token in listed.items() if int(id) not in known)


class _Bytes:
    """The bytes of every token, for tokenizers that have no tokenizer.json."""

    def __init__(self, path: Path, size: int, eos_ids: Sequence[int]) -> None:
        from mlx_lm.utils import load_tokenizer

        from memra_mlx.prompt.detokenizer import Vocabulary

        self._tokenizer = load_tokenizer(path)
        vocabulary = Vocabulary(self._tokenizer)
        self.eos_token_id = eos_ids[0]
        self.bos_token_id = self._tokenizer.bos_token_id
        self.tokens = [vocabulary.token_bytes(index) for index in range(size)]
        added = self._tokenizer.added_tokens_decoder
        self.special_token_ids = [index for index, token in added.items() if is_special(token.content, token.special)]

    def __call__(self, text: str | bytes) -> list[int]:
        """Ids of plain text."""
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return list(self._tokenizer.encode(plain, add_special_tokens=False))
