"""Sealed reasoning: opened by the tenant, the model and the keys that sealed it, and by nobody else."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from memra_mlx.cache.seal import FILE, Sealer, SealKeyError, load_keys, parse_keys
from memra_mlx.cache.transcripts import Space

KEY, OTHER = b"k" * 32, b"o" * 32
MINE = Space("t:one\x1fsalt", "model-a")
IDS = [1, 2, 3, 70_000, 2**31]
LIMIT = 4096


def test_there_and_back() -> None:
    text = Sealer([KEY]).seal(MINE, IDS)
    assert Sealer([KEY]).open(MINE, text, LIMIT) == IDS
    assert text.isascii()
    assert Sealer([KEY]).seal(MINE, IDS) != text


@pytest.mark.parametrize(
    "scope", [Space("t:two\x1fsalt", "model-a"), Space("t:one\x1f", "model-a"), Space("t:one\x1fsalt", "model-b")]
)
def test_nobody_elses_opens(scope: Space) -> None:
    sealer = Sealer([KEY])
    assert sealer.open(MINE, sealer.seal(scope, IDS), LIMIT) is None
    assert sealer.open(scope, sealer.seal(MINE, IDS), LIMIT) is None


def test_parts_of_a_scope_do_not_run_together() -> None:
    sealer = Sealer([KEY])
    assert sealer.open(Space("ab", "c"), sealer.seal(Space("a", "bc"), IDS), LIMIT) is None


def test_a_key_is_replaced_in_three_steps() -> None:
    old, both, new = Sealer([KEY]), Sealer([OTHER, KEY]), Sealer([OTHER])
    before = old.seal(MINE, IDS)
    assert both.open(MINE, before, LIMIT) == IDS
    after = both.seal(MINE, IDS)
    assert new.open(MINE, after, LIMIT) == both.open(MINE, after, LIMIT) == IDS
    assert new.open(MINE, before, LIMIT) is old.open(MINE, after, LIMIT) is None


def test_no_changed_byte_passes() -> None:
    sealer = Sealer([KEY])
    data = base64.urlsafe_b64decode(sealer.seal(MINE, IDS))
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert sealer.open(MINE, base64.urlsafe_b64encode(changed).decode(), LIMIT) is None
        assert sealer.open(MINE, base64.urlsafe_b64encode(data[:at]).decode(), LIMIT) is None


@pytest.mark.parametrize("text", ["", "memra-unsealed", "from-elsewhere", "ü", "A" * 4, "A" * 100_000, "\0", "bTE="])
def test_what_is_foreign_is_nothing(text: str) -> None:
    assert Sealer([KEY]).open(MINE, text, LIMIT) is None


def test_more_than_the_context_is_nothing() -> None:
    sealer = Sealer([KEY])
    assert sealer.open(MINE, sealer.seal(MINE, range(LIMIT)), LIMIT) == list(range(LIMIT))
    assert sealer.open(MINE, sealer.seal(MINE, range(LIMIT + 1)), LIMIT) is None
    assert sealer.open(MINE, sealer.seal(MINE, [7] * 2_000_000), LIMIT) is None


def test_the_key_file_is_made_once_and_for_its_owner(tmp_path: Path) -> None:
    made = load_keys(tmp_path / "state")
    assert load_keys(tmp_path / "state") == made
    assert len(made[0]) == 32
    assert stat.S_IMODE((tmp_path / "state" / FILE).stat().st_mode) == 0o600
    assert [file.name for file in (tmp_path / "state").iterdir()] == [FILE]


def test_keys_in_every_form() -> None:
    forms = [base64.urlsafe_b64encode(KEY).decode(), OTHER.hex(), base64.urlsafe_b64encode(KEY).decode().rstrip("=")]
    assert parse_keys(", ".join(forms), "here") == [KEY, OTHER, KEY]


@pytest.mark.parametrize("text", ["", "short", "not base64!", "g" * 64])
def test_a_bad_key_names_its_source(text: str) -> None:
    with pytest.raises(SealKeyError, match=r"^here: "):
        parse_keys(text, "here")
