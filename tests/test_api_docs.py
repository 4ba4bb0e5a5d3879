"""`docs/api.md` names every field that a wire model reads, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from memra_mlx.dialects import chat_wire, completions_wire, messages_wire, responses_wire

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
MODELS: dict[str, type[BaseModel]] = {
    "/v1/messages": messages_wire.Body,
    "/v1/chat/completions": chat_wire.Body,
    "/v1/responses": responses_wire.Body,
    "/v1/completions": completions_wire.Body,
}


def documented(path: str) -> list[str]:
    """The fields in the first table under the heading `path`."""
    section = PAGE.read_text().split(f"## {path}\n", 1)[1].split("\n## ", 1)[0]
    table = section.split("| field |", 1)[1].split("\n\n", 1)[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


@pytest.mark.parametrize("path", MODELS)
def test_each_field_is_in_the_table_once(path: str):
    found = documented(path)
    fields = {field.alias or name for name, field in MODELS[path].model_fields.items()}
    assert sorted(found) == sorted(fields)
