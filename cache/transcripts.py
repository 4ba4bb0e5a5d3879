"""Transcripts: the exact tokens of a conversation, hidden reasoning included, found by what a client can replay of it.

Three kinds of small entries, all under a namespace and a model's fingerprint:

    record   tokens of a whole conversation up to the end of an answer, named by their hash
    visible  key of the visible chain -> names of records, newest first
    call     id of a tool call -> names of records, newest first

A record is written before the entries that name it, so a crash in between leaves nothing that misleads.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec

from memra_mlx.cache.canonical import Key
from memra_mlx.cache.disk import Shelf, tenant_tag

log = logging.getLogger("memra.cache")

FORMAT = 1
FOLDER = "transcripts"
_NAMES = 8  # records that one visible key may have
_SIZE = 16


class Transcript(msgspec.Struct, frozen=True, array_like=True):
    """The conversation up to the end of an answer.

    `tokens` are packed, 4 bytes each, without an end-of-turn token. `ends` are offsets at which state is worth keeping.
    `calls` are (id, name) of the last answer. `reasoned`: there is hidden reasoning in it. `visible` is its key;
    `system` and `tools` are digests of what it began with.
    """

    tokens: bytes
    ends: list[int]
    calls: list[tuple[str, str]]
    reasoned: bool
    visible: Key
    system: str
    tools: str
    created: float = 0.0
    format: int = FORMAT

    @property
    def ids(self) -> list[int]:
        """The token ids."""
        return array("I", self.tokens).tolist()


def packed(ids: Iterable[int]) -> bytes:
    """Token ids as 4 bytes each."""
    return array("I", ids).tobytes()


@dataclass(frozen=True, slots=True)
class Space:
    """Whose transcripts, and of which model."""

    namespace: str
    fingerprint: str

    @property
    def tag(self) -> str:
        """Its tenant, as the disk is told."""
        return tenant_tag(self.namespace)

    def name(self, kind: str, value: bytes) -> bytes:
        """The key of an entry."""
        told = msgspec.msgpack.encode([kind, self.namespace, self.fingerprint, value])
        return kind.encode() + blake2b(told, digest_size=_SIZE, person=b"memra-record").digest()


class Transcripts:
    """The store, at most `limit` bytes under `folder`."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._shelf = Shelf(folder / FOLDER, limit)

    def keep(self, space: Space, transcript: Transcript) -> None:
        """Store a transcript under its visible key and its call ids."""
        record = space.name("r", transcript.tokens)
        stamped = msgspec.structs.replace(transcript, created=time.time())
        body = msgspec.msgpack.encode(stamped)
        if not self._shelf.put(record, _checksum(body) + body, space.tag):
            return
        self._add(space, space.name("v", transcript.visible), record)
        for call_id, _ in transcript.calls:
            self._add(space, space.name("c", call_id.encode()), record)

    def visible(self, space: Space, key: Key) -> list[Transcript]:
        """The transcripts of a visible key, newest first."""
        return self._named(space.name("v", key))

    def called(self, space: Space, call_id: str) -> list[Transcript]:
        """The transcripts whose last answer made this call, newest first."""
        return self._named(space.name("c", call_id.encode()))

    def knows_visible(self, space: Space, key: Key) -> bool:
        """Whether a visible key was stored, cheaply; its records may be gone."""
        return self._shelf.holds(space.name("v", key))

    def knows_call(self, space: Space, call_id: str) -> bool:
        """The same for a call."""
        return self._shelf.holds(space.name("c", call_id.encode()))

    def close(self) -> None:
        """Let go of the store."""
        self._shelf.close()

    def _add(self, space: Space, entry: bytes, record: bytes) -> None:
        names = [record, *(name for name in self._names(entry) if name != record)]
        self._shelf.put(entry, b"".join(names[:_NAMES]), space.tag)

    def _names(self, entry: bytes) -> list[bytes]:
        data = self._shelf.get(entry) or b""
        width = _SIZE + 1
        return [data[at : at + width] for at in range(0, len(data) - width + 1, width)]

    def _named(self, entry: bytes) -> list[Transcript]:
        found = map(self._shelf.get, self._names(entry))
        read = (decoded(data) for data in found if data is not None)
        return [transcript for transcript in read if transcript is not None]


def decoded(data: bytes) -> Transcript | None:
    """A record as it lies on disk; None with a log line for what is damaged, or of another version."""
    check, body = data[:_SIZE], data[_SIZE:]
    if check != _checksum(body):
        log.warning("a transcript is damaged and counts as a miss")
        return None
    try:
        transcript = msgspec.msgpack.decode(body, type=Transcript)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        log.warning("a transcript is not of this version and counts as a miss: %s", fault)
        return None
    return transcript if transcript.format == FORMAT else None


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=_SIZE).digest()


def closest(candidates: Sequence[Transcript], call_ids: Sequence[str], sealed: Sequence[bytes]) -> Transcript | None:
    """Which of several transcripts of one visible key is meant: by call ids, then by sealed reasoning, else the newest.

    `sealed` are packed tokens of reasoning that came back with the answer.
    """

    def fits(transcript: Transcript) -> tuple[bool, bool]:
        ids = {call_id for call_id, _ in transcript.calls}
        same = bool(call_ids) and not ids.isdisjoint(call_ids)
        return same, any(piece in transcript.tokens for piece in sealed)

    return max(candidates, key=fits, default=None)
