"""What `/v1/models` says: one row a model or alias, in the words of all clients at once.

OpenAI clients read `id`, `object`, `created`, `owned_by`; Anthropic's `type`, `display_name`, `created_at`,
`lifecycle`, `capabilities`, `max_input_tokens`, `max_tokens`; Codex `slug`, `context_window`,
`supported_reasoning_levels`; others `context_length` or `max_model_len`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from memra_mlx.config import Config
from memra_mlx.errors import invalid
from memra_mlx.models import Entry, Loaded, Models
from memra_mlx.prompt.text_model import TextModel

Row = dict[str, Any]

MOST = 1000
_KNOWN_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def rows(models: Models, config: Config) -> list[Row]:
    """The models, then the aliases that are whole names."""
    names = {entry.spec.id: entry for entry in models.entries.values()}
    for alias in config.aliases:
        if "*" not in alias.pattern and alias.model in models.entries:
            names.setdefault(alias.pattern, models.entries[alias.model])
    return [row(entry, name) for name, entry in names.items()]


def page(found: list[Row], query: Mapping[str, str]) -> Row:
    """The list, or the part of it that `limit`, `after_id` and `before_id` ask for. Raises a 400 naming one of them."""
    limit = _limit(query.get("limit"))
    begin = _place(found, "after_id", query["after_id"]) + 1 if "after_id" in query else 0
    end = _place(found, "before_id", query["before_id"]) if "before_id" in query else len(found)
    asked = found[begin:end]
    backwards = "before_id" in query and "after_id" not in query
    shown = asked[-limit:] if backwards else asked[:limit]
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    return {"object": "list", "has_more": len(shown) < len(asked), **ends, "data": shown, "models": shown}


def row(entry: Entry, name: str) -> Row:
    """A model under `name`; sizes are tokens, and known once it is loaded."""
    created = datetime.fromtimestamp(entry.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    facts: Row = {"id": name, "object": "model", "type": "model", "owned_by": "memra-mlx", "slug": name}
    facts |= {"display_name": name, "created": entry.created, "created_at": created, "lifecycle": "active"}
    return {**facts, "state": entry.phase, **(_loaded(entry.loaded) if entry.loaded else {})}


def _loaded(model: Loaded) -> Row:
    context, text = model.facts.context, model.text
    levels = reasoning_levels(text)
    sizes = ("context_length", "context_window", "max_model_len", "max_input_tokens", "max_output_tokens", "max_tokens")
    return {
        **dict.fromkeys(sizes, context),
        "reasoning": text.thinks,
        "supported_reasoning_levels": [{"effort": level, "description": level} for level in levels],
        "supports_parallel_tool_calls": text.tool_style is not None,
        "tool_call_style": text.tool_style,
        "input_modalities": ["text"],
        "lane": model.facts.lane_kind,
        "capabilities": dict(_capabilities(text)),
    }


def reasoning_levels(text: TextModel) -> list[str]:
    """The effort levels that this model tells apart; the others are accepted too, as the nearest of these."""
    if not text.thinks:
        return []
    switch = ["none"] if text.traits.switch else []
    return list(dict.fromkeys([*switch, *(text.traits.efforts or ["high"])]))


def _capabilities(text: TextModel) -> Iterator[tuple[str, Row]]:
    for name in ("batch", "citations", "code_execution", "image_input", "pdf_input"):
        yield name, _supported(False)
    yield "context_management", _supported(False)
    yield "structured_outputs", _supported(True)
    yield "tools", _supported(text.tool_style is not None)
    yield "server_tools", {**_supported(False), "code_execution": _supported(False), "web_search": _supported(False)}
    efforts = {level: _supported(text.thinks) for level in _KNOWN_EFFORTS}
    yield "effort", {**_supported(text.thinks), **efforts}
    kinds = {"enabled": True, "adaptive": True, "disabled": True, "between_tools": False}
    types = {kind: _supported(accepted) for kind, accepted in kinds.items()}
    yield "thinking", {**_supported(text.thinks), "types": types}


def _supported(supported: bool) -> Row:
    return {"supported": supported}


def _limit(sent: str | None) -> int:
    if sent is None:
        return MOST
    if not (sent.isascii() and sent.isdigit() and len(sent) <= 4 and 1 <= int(sent) <= MOST):
        raise invalid("limit", f"must be a whole number from 1 to {MOST}, not {sent[:40]!r}")
    return int(sent)


def _place(found: list[Row], field: str, id: str) -> int:
    for index, each in enumerate(found):
        if each["id"] == id:
            return index
    raise invalid(field, f"{id[:80]!r} is none of the models listed here")
