"""What lies in a cache folder: for looking at it, tidying it up, and checking it. Works beside a running server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memra_mlx.cache import kv_file, transcripts
from memra_mlx.cache.disk import Row, Shelf, tenant_tag
from memra_mlx.cache.kv_file import MODEL, Damaged, Name

OPEN = "open"
"""How the namespaces of a server without keys are called; `default` means them too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes on disk that each part may take."""

    transcripts: int
    kv: int


@dataclass(frozen=True, slots=True)
class Item:
    """An entry. `part` is its folder, `kind` what it is: record, visible, call, block, mark, or unknown."""

    part: str
    kind: str
    row: Row

    @property
    def id(self) -> str:
        """What `show` takes, or the beginning of it."""
        return self.row.key.hex()


class Survey:
    """The caches below `folder`; a part that is not there is left out."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        sizes = {transcripts.FOLDER: limits.transcripts, kv_file.FOLDER: limits.kv}
        self._shelves = {part: Shelf(folder / part, size) for part, size in sizes.items() if (folder / part).is_dir()}

    def items(self, tenant: str | None = None) -> Iterator[Item]:
        """All entries, of one tenant or of all, in each part the least recently used first."""
        tags = tags_of(tenant)
        for part, shelf in self._shelves.items():
            for row in shelf.rows():
                if tags is None or row.tag in tags:
                    yield Item(part, _kind(part, row.key), row)

    def totals(self, tenant: str | None = None) -> dict[tuple[str, str], tuple[int, int]]:
        """Entries and bytes by part and kind."""
        counts: Counter[tuple[str, str]] = Counter()
        sizes: Counter[tuple[str, str]] = Counter()
        for item in self.items(tenant):
            counts[(item.part, item.kind)] += 1
            sizes[(item.part, item.kind)] += item.row.size
        return {key: (counts[key], sizes[key]) for key in sorted(counts)}

    def facts(self, item: Item) -> dict[str, Any]:
        """What can be told of an entry without its text or tokens."""
        facts: dict[str, Any] = {"part": item.part, "kind": item.kind, "bytes": item.row.size}
        facts |= {"stored": item.row.stored, "used": item.row.used, "fault": self.fault(item)}
        if name := _name(item):
            return facts | {"model": item.row.key[:MODEL].hex(), "tokens": name.length, "parent": name.parent.hex()}
        data = self._shelves[item.part].get(item.row.key) if item.kind == "record" else None
        if data and (record := transcripts.decoded(data)):
            facts |= {"tokens": len(record.ids), "calls": [call_id for call_id, _ in record.calls]}
            facts["reasoned"] = record.reasoned
        return facts

    def fault(self, item: Item) -> str | None:
        """What is wrong with an entry; None if it is as it was written."""
        shelf = self._shelves[item.part]
        if name := _name(item):
            file = shelf.file(item.row.key)
            if file is None:
                return "its file is gone"
            try:
                with file:
                    kv_file.verify(file, name.packed(item.row.key[:MODEL]).hex())
            except Damaged as fault:
                return str(fault)
            return None
        data = shelf.get(item.row.key)
        if data is None:
            return "it cannot be read"
        if item.kind == "record" and transcripts.decoded(data) is None:
            return "it is damaged, or of another version"
        return None if item.kind != "unknown" else "it is no entry of ours"

    def drop(self, item: Item) -> None:
        """Delete an entry."""
        self._shelves[item.part].delete(item.row.key)

    def prune(self, tenant: str | None = None) -> int:
        """Delete all entries of a tenant, or of all; how many they were."""
        tags = tags_of(tenant)
        if tags is None:
            return sum(shelf.clear() for shelf in self._shelves.values())
        return sum(shelf.evict(tag) for shelf in self._shelves.values() for tag in tags)


def tags_of(tenant: str | None) -> set[str] | None:
    """The tags of a tenant's entries; None for everybody."""
    if tenant is None:
        return None
    tags = {tenant_tag(f"t:{tenant}\x1f")}
    return tags | {tenant_tag("")} if tenant in (OPEN, "default") else tags


def _name(item: Item) -> Name | None:
    return Name.parsed(item.row.key, item.row.key[:MODEL]) if item.part == kv_file.FOLDER else None


def _kind(part: str, key: bytes) -> str:
    if part == kv_file.FOLDER:
        name = Name.parsed(key, key[:MODEL])
        return name.kind if name else "unknown"
    return {b"r": "record", b"v": "visible", b"c": "call"}.get(key[:1], "unknown")
