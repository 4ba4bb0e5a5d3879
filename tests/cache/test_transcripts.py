"""Transcripts on disk: what is stored is found, by its own namespace and model alone, and nothing else is trusted."""

from __future__ import annotations

import pickle
import sqlite3
import stat
from pathlib import Path

import msgspec
import pytest

from memra_mlx.cache.disk import BytesDisk, Shelf, tenant_tag
from memra_mlx.cache.transcripts import FOLDER, Space, Transcript, Transcripts, closest, packed

HOME = Space("t:one\x1fsalt", "model-a")
LIMIT = 4 << 20


def transcript(*ids: int, calls: tuple[tuple[str, str], ...] = (), key: bytes = b"key") -> Transcript:
    return Transcript(packed(ids), [1, len(ids)], list(calls), True, key, "s", "t")


@pytest.fixture
def store(tmp_path: Path) -> Transcripts:
    return Transcripts(tmp_path, LIMIT)


def test_found_by_visible_key_and_by_call(store: Transcripts, tmp_path: Path) -> None:
    store.keep(HOME, transcript(1, 2, 3, calls=(("call_1", "f"), ("call_2", "g"))))
    again = Transcripts(tmp_path, LIMIT)
    (found,) = again.visible(HOME, b"key")
    assert (found.ids, found.ends, found.calls) == ([1, 2, 3], [1, 3], [("call_1", "f"), ("call_2", "g")])
    assert again.called(HOME, "call_2") == [found]
    assert again.knows_call(HOME, "call_1")
    assert not again.knows_call(HOME, "call_3")


@pytest.mark.parametrize(
    "other", [Space("t:two\x1fsalt", "model-a"), Space("t:one\x1f", "model-a"), Space("t:one\x1fsalt", "model-b")]
)
def test_namespaces_and_models_never_mix(store: Transcripts, other: Space) -> None:
    store.keep(HOME, transcript(1, calls=(("call_1", "f"),)))
    store.keep(other, transcript(2, key=b"key2"))
    assert store.visible(other, b"key") == store.called(other, "call_1") == store.visible(HOME, b"key2") == []
    assert not store.knows_call(other, "call_1")


def test_several_of_one_key_newest_first_and_a_repetition_once(store: Transcripts) -> None:
    for n in (1, 2, 1):
        store.keep(HOME, transcript(n))
    assert [found.ids for found in store.visible(HOME, b"key")] == [[1], [2]]
    for n in range(20):
        store.keep(HOME, transcript(n))
    assert len(store.visible(HOME, b"key")) == 8


def test_ties_go_to_call_ids_then_to_sealed_state_then_to_the_newest() -> None:
    newest, middle, oldest = transcript(7, 8, 9), transcript(4, 5, 6), transcript(1, 2, 3, calls=(("call_1", "f"),))
    found = [newest, middle, oldest]
    assert closest(found, ["call_1"], [packed([5])]) is oldest
    assert closest(found, ["call_9"], [packed([5, 6])]) is middle
    assert closest(found, [], []) is newest
    assert closest([], [], []) is None


def test_damage_is_a_miss_with_a_line(store: Transcripts, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    big = transcript(*range(20_000))
    store.keep(HOME, big)
    (file,) = (tmp_path / FOLDER).rglob("*.val")
    file.write_bytes(file.read_bytes()[:-7])
    assert store.visible(HOME, b"key") == []
    file.write_bytes(b"\0" * 100)
    assert store.visible(HOME, b"key") == []
    assert caplog.text.count("damaged") == 2
    file.unlink()
    assert store.visible(HOME, b"key") == []


def test_a_record_of_another_version_is_a_miss(store: Transcripts) -> None:
    store.keep(HOME, msgspec.structs.replace(transcript(1), format=99))
    assert store.visible(HOME, b"key") == []


def test_a_damaged_index_is_given_up(store: Transcripts, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store.keep(HOME, transcript(1))
    store.close()
    index = tmp_path / FOLDER / "cache.db"
    index.write_bytes(b"no database" * 1000)
    again = Transcripts(tmp_path, LIMIT)
    assert again.visible(HOME, b"key") == []
    again.keep(HOME, transcript(2))
    assert [found.ids for found in again.visible(HOME, b"key")] == [[2]]
    assert "cannot be used" in caplog.text


def test_a_cache_that_cannot_be_written_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FOLDER).write_text("a file in the way")
    store = Transcripts(tmp_path, LIMIT)
    store.keep(HOME, transcript(1))
    assert store.visible(HOME, b"key") == []
    assert caplog.records


def test_only_the_owner_may_look(store: Transcripts, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / FOLDER).stat().st_mode) == 0o700
    assert tenant_tag("t:one\x1fsalt") == tenant_tag("t:one\x1f") != tenant_tag("t:two\x1f")
    assert tenant_tag("salt") == tenant_tag("") != tenant_tag("t:one\x1f")


def test_nothing_is_pickled(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "s", LIMIT)
    for value in ("text", 1, {"a": 1}, None):
        assert not shelf.put(b"k", value, "t")  # type: ignore[arg-type]
    assert shelf.get("text") is None  # type: ignore[arg-type]
    assert shelf.rows() == []


class Boom:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("exploded"),)


@pytest.mark.parametrize("mode", [3, 4])
def test_nothing_is_unpickled(tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shelf = Shelf(tmp_path / "s", LIMIT)
    shelf.put(b"k", b"v", "t")
    payload = pickle.dumps(Boom())
    (tmp_path / "s" / "evil.val").write_bytes(payload)
    with sqlite3.connect(tmp_path / "s" / "cache.db") as index:
        index.execute("UPDATE Cache SET mode = ?, value = ?", (mode, payload))
        index.execute("INSERT INTO Cache (key, raw, mode, filename) VALUES (?, 1, ?, 'evil.val')", (b"e", mode))
        index.execute("INSERT INTO Cache (key, raw, mode, value) VALUES (?, 0, 1, x'00')", (payload,))
    index.close()
    assert shelf.get(b"k") is None
    assert shelf.get(b"e") is None
    assert {row.key for row in shelf.rows()} == {b"k", b"e"}
    assert not Path("exploded").exists()


def test_a_file_outside_is_not_read(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "s", LIMIT)
    shelf.put(b"k", b"v", "t")
    (tmp_path / "secret").write_bytes(b"secret")
    with sqlite3.connect(tmp_path / "s" / "cache.db") as index:
        for name in ("../secret", str(tmp_path / "secret")):
            index.execute("UPDATE Cache SET mode = 2, value = NULL, filename = ?", (name,))
            index.commit()
            assert shelf.get(b"k") is None
    index.close()


def test_the_disk_class_is_the_one_in_use(tmp_path: Path) -> None:
    disk = BytesDisk(str(tmp_path))
    with pytest.raises(ValueError, match="bytes"):
        disk.store({}, False)
    with pytest.raises(ValueError, match="bytes"):
        disk.put(1)


def test_the_size_stays_within_its_limit(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "s", 1 << 20)
    for n in range(60):
        shelf.put(b"%d" % n, bytes(60_000), "t")
    assert shelf.put(b"big", bytes(700_000), "t")
    assert shelf.nbytes <= 1 << 20
    assert shelf.holds(b"big")
    assert shelf.holds(b"59")
    assert not shelf.holds(b"40")
    files = sum(file.stat().st_size for file in (tmp_path / "s").rglob("*.val"))
    assert files <= 1 << 20


def test_what_was_used_last_stays(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "s", 1 << 20)
    shelf.put(b"first", bytes(60_000), "t")
    for n in range(40):
        shelf.put(b"%d" % n, bytes(60_000), "t")
        assert shelf.get(b"first") is not None


def test_the_order_of_use_can_be_told(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "s", LIMIT)
    for key in (b"a", b"b", b"c"):
        shelf.put(key, b"x", "t")
    shelf.use([b"b", b"a", b"gone"])
    assert [(row.key, row.tag, row.size) for row in shelf.rows()] == [(b"c", "t", 1), (b"b", "t", 1), (b"a", "t", 1)]


def test_a_tenants_entries_can_be_dropped(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "s", LIMIT)
    for n in range(3):
        shelf.put(b"%d" % n, b"x", "one" if n else "two")
    assert shelf.evict("one") == 2
    assert [row.key for row in shelf.rows()] == [b"0"]
