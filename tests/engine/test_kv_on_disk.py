"""KV state on disk: after memory is gone a conversation goes on as if nothing had happened."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from desk import Desk
from tiny_nets import KINDS, VOCABULARY, random_net

from memra_mlx.cache.disk import Shelf, tenant_tag
from memra_mlx.cache.kv_disk import DiskTier
from memra_mlx.cache.kv_file import FOLDER
from memra_mlx.cache.kv_index import root

LIMIT = 64 << 20


def prompt_of(length: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(VOCABULARY) for _ in range(length)]


class Place:
    """A folder with one model's state on disk, served by one desk after the other."""

    def __init__(self, folder: Path, kind: str = "full", fingerprint: str = "") -> None:
        self.folder = folder
        self.kind = kind
        self.fingerprint = fingerprint or kind

    def desk(self, **fields: Any) -> Desk:
        self.tier = DiskTier(self.folder, fields.pop("limit", LIMIT), self.fingerprint)
        return Desk(random_net(self.kind), tier=self.tier, **fields)

    def close(self) -> None:
        self.tier.close(30)

    def files(self) -> list[Path]:
        return sorted((self.folder / FOLDER).rglob("*.val"))


def cold(kind: str, prompt: list[int], **fields: Any) -> list[int]:
    return Desk(random_net(kind)).answer(prompt, **fields)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_process_goes_on_from_disk(tmp_path: Path, kind: str) -> None:
    place, prompt = Place(tmp_path, kind), prompt_of(150, 1)
    answer = place.desk().answer(prompt)
    place.close()
    longer = [*prompt, *answer, *prompt_of(40, 2)]
    again = place.desk()
    assert again.answer(longer, id="longer") == cold(kind, longer)
    assert again.started("longer").source == "disk"
    assert again.started("longer").cached == len(prompt) + len(answer)
    place.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_memory_evicted_comes_back(tmp_path: Path, kind: str) -> None:
    place, prompt = Place(tmp_path, kind), prompt_of(150, 3)
    desk = place.desk()
    answer = desk.answer(prompt)
    desk.store.resize(0)
    assert desk.store.nbytes == 0
    place.close()
    assert place.desk().answer([*prompt, *answer[:5]]) == cold(kind, [*prompt, *answer[:5]])
    place.close()


def test_only_what_is_new_is_written(tmp_path: Path) -> None:
    place = Place(tmp_path)
    desk = place.desk(span=64)
    talk = prompt_of(100, 4)
    for turn in range(20):
        talk += [*desk.answer(talk, 8, id=f"t{turn}", segment_ends=[len(talk)]), *prompt_of(30, turn)]
    place.close()
    written = sum(file.stat().st_size for file in place.files())
    tokens = desk.ended("t19").kv_tokens
    arrays = tokens * desk.net.facts.ready.kv_bytes_per_token
    heads = len(place.files()) * 1500
    assert arrays <= written <= 1.1 * arrays + heads
    again = place.desk(span=64)
    assert again.store.peek("", [*talk, 0]) >= tokens - 1
    place.close()


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone", "swap"])
def test_a_damaged_file_is_a_miss(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    place, prompt = Place(tmp_path), prompt_of(150, 5)
    place.desk().answer(prompt)
    place.close()
    files = place.files()
    contents = [file.read_bytes() for file in files]
    for n, (file, data) in enumerate(zip(files, contents, strict=True)):
        match damage:
            case "cut":
                file.write_bytes(data[: len(data) // 2])
            case "flip":
                file.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
            case "empty":
                file.write_bytes(b"")
            case "gone":
                file.unlink()
            case "swap":
                file.write_bytes(contents[n - 1])
    again = place.desk()
    assert again.answer(prompt, id="again") == cold("full", prompt)
    assert again.started("again").source == "none"
    if damage != "gone":
        assert "damaged and counts as a miss" in caplog.text
    third = place.desk()
    assert third.answer(prompt, id="third") == cold("full", prompt)
    place.close()


def test_another_model_or_type_finds_nothing(tmp_path: Path) -> None:
    prompt = prompt_of(100, 6)
    place = Place(tmp_path, fingerprint="float32")
    place.desk().answer(prompt)
    place.close()
    other = Place(tmp_path, fingerprint="bfloat16")
    desk = other.desk()
    desk.answer(prompt, id="other")
    assert desk.started("other").cached == 0
    other.close()


def test_namespaces_are_kept_apart_and_can_be_told(tmp_path: Path) -> None:
    place, prompt = Place(tmp_path), prompt_of(100, 7)
    for space in ("t:one\x1fa", "t:one\x1fb", "t:two\x1f"):
        place.desk().answer(prompt, namespace=space)
        place.close()
    again = place.desk()
    again.answer(prompt, id="third", namespace="t:three\x1f")
    assert again.started("third").cached == 0
    again.answer(prompt, id="two", namespace="t:two\x1f")
    assert again.started("two").cached == 99
    place.close()
    shelf = Shelf(tmp_path / FOLDER, LIMIT)
    tags = {row.tag for row in shelf.rows()}
    assert tags == {tenant_tag(f"t:{name}\x1f") for name in ("one", "two", "three")}
    assert shelf.evict(tenant_tag("t:one\x1f")) > 0
    desk = place.desk()
    desk.answer(prompt, id="one", namespace="t:one\x1fa")
    assert desk.started("one").cached == 0
    place.close()


def test_the_budget_is_kept_and_parents_outlive_children(tmp_path: Path) -> None:
    place = Place(tmp_path)
    size = 300_000
    for seed in range(6):
        place.desk(limit=size).answer(prompt_of(200, seed))
        place.close()
        assert sum(file.stat().st_size for file in place.files()) <= size
    desk = place.desk(limit=size)
    names = place.tier._names.values()
    assert all(name.parent == root("") or place.tier.holds("block", name.parent) for name in names)
    assert desk.store.peek("", [*prompt_of(200, 0), 0]) == 0
    desk.answer(prompt_of(200, 5), id="newest")
    assert desk.started("newest").cached == 199
    place.close()


def test_too_much_at_once_is_let_go(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, LIMIT, "full", queue_bytes=1)
    desk = Desk(random_net("full"), tier=tier)
    prompt = prompt_of(400, 8)
    assert desk.answer(prompt) == cold("full", prompt)
    tier.close(30)
    assert tier.skipped > 0


def test_a_disk_that_cannot_be_written_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    place, prompt = Place(tmp_path), prompt_of(100, 9)
    desk = place.desk()
    assert desk.answer(prompt) == desk.answer(prompt) == cold("full", prompt)
    place.close()
    assert "cannot be used" in caplog.text
