"""Bodies in which anything may stand anywhere."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

WORDS = st.sampled_from(["", "user", "tool", "text", "image", "tool_use", "function", "custom", "auto", "none", "5"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS | st.text(max_size=9)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=6
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside `value`."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


@st.composite
def spoiled(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """`body` with up to two of its places, however deep, gone or holding anything."""
    sent = copy.deepcopy(body)
    for _ in range(draw(st.integers(0, 2))):
        container, key = draw(st.sampled_from(list(places(sent)) or [(sent, "model")]))
        if draw(st.booleans()):
            container[key] = draw(VALUES)
        else:
            del container[key]
    return sent
