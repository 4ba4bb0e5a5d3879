"""Pages of `/v1/models`, and the ends of the list."""

from __future__ import annotations

import pytest

from memra_mlx.catalog import page
from memra_mlx.errors import ApiError

ROWS = [{"id": name} for name in "abcde"]


def ids(**query: str) -> tuple[str, bool]:
    found = page(ROWS, query)
    shown = "".join(row["id"] for row in found["data"])
    assert (found["first_id"], found["last_id"]) == ((shown[0], shown[-1]) if shown else (None, None))
    return shown, found["has_more"]


def test_pages():
    assert ids() == ("abcde", False)
    assert ids(limit="1000") == ("abcde", False)
    assert ids(limit="2") == ("ab", True)
    assert ids(limit="2", after_id="b") == ("cd", True)
    assert ids(limit="2", after_id="d") == ("e", False)
    assert ids(after_id="e") == ("", False)
    assert ids(limit="2", before_id="d") == ("bc", True)
    assert ids(before_id="b") == ("a", False)
    assert ids(after_id="a", before_id="e", limit="2") == ("bc", True)


@pytest.mark.parametrize(
    ("field", "value"), [("limit", "0"), ("limit", "1001"), ("limit", "x"), ("limit", "²"), ("after_id", "z")]
)
def test_what_cannot_be_is_a_400_that_names_it(field: str, value: str):
    with pytest.raises(ApiError) as caught:
        page(ROWS, {field: value})
    assert (caught.value.rule.status, caught.value.param) == (400, field)
