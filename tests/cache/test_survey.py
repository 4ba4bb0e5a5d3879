"""`memra-mlx cache`: looking at, pruning and checking what lies on disk."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from click.testing import CliRunner, Result

from memra_mlx.cache.kv_disk import DiskTier
from memra_mlx.cache.kv_index import Index, packed
from memra_mlx.cache.transcripts import Space, Transcript, Transcripts
from memra_mlx.cache.transcripts import packed as packed_ids
from memra_mlx.cli.main import main

LIMIT = 16 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Transcripts and blocks of two tenants and of an open server."""
    store = Transcripts(tmp_path, LIMIT)
    tier = DiskTier(tmp_path, LIMIT, "model")
    for space in ("t:one\x1fa", "t:two\x1f", ""):
        made = Transcript(packed_ids([1, 2, 3]), [3], [("call_1", "f")], True, b"key", "", "")
        store.keep(Space(space, "model"), made)
        index, data = Index(LIMIT, span=8, tier=tier), packed(range(16))
        path, fresh = index.plan(space, data, ())
        for step in fresh:
            index.write("block", step, data, [mx.zeros((4, 4))], 64)
        index.offer([*path, *fresh])
    tier.close(30)
    return tmp_path


def run(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["cache", *words, "--cache-dir", str(folder)])


def listed(folder: Path, *words: str) -> dict[str, int]:
    lines = [line.split() for line in run(folder, "ls", *words).output.splitlines()]
    return {kind: int(count) for _, kind, count, _ in lines}


def test_ls_counts_by_kind_and_tenant(folder: Path) -> None:
    assert listed(folder) == {"block": 6, "record": 3, "visible": 3, "call": 3}
    for tenant in ("one", "two", "default", "open"):
        assert listed(folder, "--tenant", tenant) == {"block": 2, "record": 1, "visible": 1, "call": 1}
    assert listed(folder, "--tenant", "nobody") == {}


def test_prune_takes_one_tenants_alone(folder: Path) -> None:
    assert run(folder, "prune", "--tenant", "one").output == "5 entries were deleted\n"
    assert listed(folder, "--tenant", "one") == {}
    assert sum(listed(folder).values()) == 10
    assert run(folder, "prune").exit_code == 2
    assert run(folder, "prune", "--all").output == "10 entries were deleted\n"
    assert listed(folder) == {}
    assert not list(folder.rglob("*.val"))


def test_show_tells_facts_and_no_text(folder: Path) -> None:
    entries = [line.split() for line in run(folder, "ls", "--entries").output.splitlines()]
    record = next(words[-1] for words in entries if words[1] == "record")
    block = next(words[-1] for words in entries if words[1] == "block")
    told = run(folder, "show", record).output
    assert "tokens: 3\n" in told
    assert "calls: call_1\n" in told
    assert "reasoned: True\n" in told
    assert "tokens: 8\n" in run(folder, "show", block).output
    assert "fault: -\n" in run(folder, "show", block).output
    assert run(folder, "show", "").exit_code == 1


def test_verify_finds_and_fixes_damage(folder: Path) -> None:
    good = run(folder, "verify")
    assert (good.exit_code, good.output) == (0, "15 good, 0 damaged\n")
    first, second, *_ = sorted(folder.rglob("*.val"))
    first.write_bytes(first.read_bytes()[:-3] + b"abc")
    second.unlink()
    bad = run(folder, "verify")
    assert bad.exit_code == 1
    assert bad.output.splitlines()[-1] == "13 good, 2 damaged"
    assert "its data are damaged" in bad.output
    assert "its file is gone" in bad.output
    assert run(folder, "verify", "--fix").exit_code == 0
    assert run(folder, "verify").output == "13 good, 0 damaged\n"


def test_no_cache_is_an_empty_one(tmp_path: Path) -> None:
    assert run(tmp_path, "ls").output == ""
    assert run(tmp_path, "verify").output == "0 good, 0 damaged\n"
    assert list(tmp_path.iterdir()) == []
