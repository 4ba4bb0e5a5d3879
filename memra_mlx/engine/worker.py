"""The engine process: a socket read and written by threads of their own, and a main thread that owns MLX."""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never, cast

import mlx.core as mx
import msgspec
from mlx_lm.generate import generation_stream
from mlx_lm.models.cache import make_prompt_cache

from memra_mlx.cache import fingerprint
from memra_mlx.cache.kv import KvStore
from memra_mlx.cache.kv_disk import DiskTier, state_form
from memra_mlx.cache.kv_index import Index
from memra_mlx.cache.kv_tier import NoTier, Tier
from memra_mlx.engine.facts import gather
from memra_mlx.engine.grammar import Grammars
from memra_mlx.engine.grammar_tokens import load_tokens
from memra_mlx.engine.loader import LoadError, load
from memra_mlx.engine.memory import apply_limits, default_budget, on_gpu, used_bytes
from memra_mlx.engine.plan import Pace
from memra_mlx.engine.protocol import (
    Cancel,
    Drain,
    Fault,
    Frames,
    FromEngine,
    Heartbeat,
    KvFigures,
    SetBudget,
    Stop,
    Submit,
    ToEngine,
    encode,
)
from memra_mlx.engine.room import Room
from memra_mlx.engine.scheduler import Scheduler

log = logging.getLogger("memra.engine.worker")

_BEAT_S = 1.0
_ORPHAN_S = 20.0  # a step that outlives the server by this much is not worth waiting for
_FLUSH_S = 2.0
_DISK_FLUSH_S = 8.0
_GPU_CHUNK, _CPU_CHUNK = 2048, 512


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; 0 is "choose". `stall_s` bounds how long a prefill may hold up decoding streams; KV
    state also goes to `disk_bytes` below `disk`, if there is one."""

    model: Path
    context: int = 0
    kv_bytes: int = 0
    prefill_step: int = 0
    stall_s: float = 0.25
    disk: Path | None = None
    disk_bytes: int = 0


@dataclass(slots=True)
class Vitals:
    """What heartbeats tell; written by the main thread alone. `busy_since`: the last finished step, 0 when idle."""

    busy_since: float = 0.0
    steps: int = 0
    live: int = 0
    waiting: int = 0
    memory_bytes: int = 0
    kv_bytes: int = 0
    kv: KvFigures = field(default_factory=KvFigures)

    def beat(self, now: float) -> Heartbeat:
        """A heartbeat at `now` on the monotonic clock."""
        since = self.busy_since
        age = max(0.0, now - since) if since else 0.0
        return Heartbeat(age, self.steps, self.live, self.waiting, self.memory_bytes, self.kv_bytes, self.kv)


class Hangup:
    """The server's end of the socket is gone."""


class Wire:
    """The socket, and the threads that serve it."""

    def __init__(self, connection: socket.socket, vitals: Vitals) -> None:
        self._connection = connection
        self._vitals = vitals
        self._out: queue.SimpleQueue[FromEngine | Hangup] = queue.SimpleQueue()
        self.inbox: queue.SimpleQueue[ToEngine | Hangup] = queue.SimpleQueue()
        self._writer = self._thread("memra-write", self._write)
        self._thread("memra-read", self._read)
        self._thread("memra-beat", self._beat)

    def send(self, message: FromEngine) -> None:
        """Queue a message."""
        self._out.put(message)

    def close(self) -> None:
        """Write what is queued."""
        self._out.put(Hangup())
        self._writer.join(_FLUSH_S)

    def _thread(self, name: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def _read(self) -> None:
        frames = Frames(ToEngine)
        try:
            while data := self._connection.recv(1 << 16):
                for message in frames.push(data):
                    self.inbox.put(cast(ToEngine, message))
        except (OSError, msgspec.DecodeError) as fault:
            log.error("the connection to the server failed: %s", fault)
        self.inbox.put(Hangup())
        time.sleep(_ORPHAN_S)
        os._exit(1)

    def _write(self) -> None:
        while not isinstance(message := self._out.get(), Hangup):
            try:
                self._connection.sendall(encode(message))
            except OSError:
                return

    def _beat(self) -> None:
        while True:
            self.send(self._vitals.beat(time.monotonic()))
            time.sleep(_BEAT_S)


def run(connection: socket.socket, options: Options) -> int:
    """Serve one model until told to stop or left alone. Returns the exit status."""
    vitals = Vitals()
    wire = Wire(connection, vitals)
    try:
        with mx.stream(generation_stream):
            engine = _Engine(wire, vitals, options)
            engine.serve()
    except LoadError as fault:
        wire.send(Fault("", "engine", str(fault)))
        log.error("%s", fault)
        return 1
    finally:
        wire.close()
    return 0


class _Engine:
    """The main thread: messages in between steps."""

    def __init__(self, wire: Wire, vitals: Vitals, options: Options) -> None:
        self._wire = wire
        self._vitals = vitals
        model = load(options.model)
        facts = gather(model, options.context)
        self._weight_bytes = facts.ready.weight_bytes
        budget = options.kv_bytes or default_budget(self._weight_bytes)
        apply_limits(self._weight_bytes, budget)
        self._tier: Tier = NoTier()
        if options.disk and options.disk_bytes:
            form = state_form(model.net, make_prompt_cache(model.net))
            known = f"{fingerprint.of_weights(options.model)} {form}"
            self._tier = DiskTier(options.disk, options.disk_bytes, known)
        self._store = KvStore(lambda: list(make_prompt_cache(model.net)), Index(budget, tier=self._tier))
        pace = Pace(options.prefill_step or (_GPU_CHUNK if on_gpu() else _CPU_CHUNK), options.stall_s)
        room = Room(facts.shape, budget, resting=int(mx.get_active_memory()))
        self._scheduler = Scheduler(model.net, facts.ready, self._store, room, pace, wire.send)
        ready = facts.ready
        self._grammars = Grammars(lambda: load_tokens(options.model, ready.vocab_size, ready.eos_ids))
        wire.send(facts.ready)

    def serve(self) -> None:
        """Until Stop or a hang-up."""
        while self._take_messages():
            if self._scheduler.busy:
                self._scheduler.step()
            self._note_vitals()
        self._store.flush()
        self._tier.close(_DISK_FLUSH_S)

    def _take_messages(self) -> bool:
        """Handle what has arrived; wait for something where there is nothing to do. False at the end."""
        while True:
            try:
                message = self._wire.inbox.get(block=not self._scheduler.busy)
            except queue.Empty:
                return True
            if isinstance(message, Hangup | Stop):
                return False
            self._handle(message)
            self._note_vitals()

    def _handle(self, message: Submit | Cancel | SetBudget | Drain) -> None:
        match message:
            case Submit():
                grammar = self._grammars.compile(message.grammar) if message.grammar else None
                self._scheduler.submit(message, grammar)
            case Cancel():
                self._scheduler.cancel(message)
            case SetBudget(bytes=size):
                apply_limits(self._weight_bytes, size)
                self._scheduler.set_budget(size)
            case Drain():
                self._scheduler.drain()
            case _:
                assert_never(message)

    def _note_vitals(self) -> None:
        vitals = self._vitals
        if not self._scheduler.busy:
            vitals.busy_since = 0.0
        elif vitals.steps != self._scheduler.steps or not vitals.busy_since:
            vitals.busy_since = time.monotonic()
        vitals.steps = self._scheduler.steps
        vitals.live, vitals.waiting = self._scheduler.counts
        vitals.memory_bytes, vitals.kv_bytes = used_bytes(), self._scheduler.kv_bytes
        vitals.kv = self._scheduler.kv_figures
