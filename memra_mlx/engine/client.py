"""The asyncio side of an engine: spawns the process, routes its messages, replaces it when it dies or hangs.

    loading -> ready -> (restarting -> ready)* -> failed | closed

A death fails the requests that have started; those that have not wait for the next process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, assert_never

import msgspec

from memra_mlx.engine.channel import Channel, Message
from memra_mlx.engine.protocol import (
    Cancel,
    Drain,
    Ended,
    Fault,
    FromEngine,
    Heartbeat,
    KvFigures,
    Progress,
    Ready,
    Started,
    Stop,
    Submit,
    ToEngine,
    Tokens,
)
from memra_mlx.engine.pulse import Limits, Pulse, Respawns
from memra_mlx.engine.supervisor import Child, Ending, EngineCommand
from memra_mlx.errors import ApiError

__all__ = ["Channel", "Engine", "EngineCommand", "EngineStatus", "Limits", "Phase"]

log = logging.getLogger("memra.engine")

Phase = Literal["loading", "ready", "restarting", "failed", "closed"]
_SENDS = 2  # a request that was with two engines as they died is given no third
_CATCH_UP_S = 0.05
_LOST = "the engine process ended before this request did; please send the request again"
_CLOSED = "the server is shutting down"


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What probes tell. Ages in seconds; `live` and `waiting` count requests; `reason`: why the last process ended."""

    phase: Phase
    generation: int
    pid: int | None
    beat_age_s: float
    step_age_s: float
    longest_step_s: float
    steps: int
    live: int
    waiting: int
    memory_bytes: int
    kv_bytes: int
    kv: KvFigures
    reason: str


class Engine:
    """One loaded model, whichever process serves it now.

    `on_failed` is called once if an engine that was ready dies more often than `limits` allow.
    """

    def __init__(self, command: EngineCommand, limits: Limits, *, on_failed: Callable[[str], None] | None = None):
        self._command = command
        self._limits = limits
        self._on_failed = on_failed
        self._phase: Phase = "loading"
        self._generation = 0
        self._reason = ""
        self._facts: Ready | None = None
        self._child: Child | None = None
        self._pulse = Pulse(limits, time.monotonic())
        self._respawns = Respawns(limits)
        self._channels: dict[str, Channel] = {}
        self._settled = asyncio.Event()  # the first load has ended, well or badly
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Spawn and supervise in the background."""
        self._task = asyncio.create_task(self._supervise(), name=f"engine {self._command.name}")

    async def ready(self) -> Ready:
        """Wait for the first load. Raises `ApiError` "unavailable" (`model_load_failed`) in the engine's own words."""
        await self._settled.wait()
        if self._facts is None:
            raise ApiError("unavailable", self._reason or _CLOSED, code="model_load_failed")
        return self._facts

    def status(self) -> EngineStatus:
        """The state now."""
        pulse, child = self._pulse, self._child
        live = sum(channel.started for channel in self._channels.values())
        return EngineStatus(
            phase=self._phase,
            generation=self._generation,
            pid=child.pid if child else None,
            beat_age_s=max(0.0, time.monotonic() - pulse.heard_at),
            step_age_s=pulse.beat.step_age_s,
            longest_step_s=pulse.longest_step_s,
            steps=pulse.beat.steps,
            live=live,
            waiting=len(self._channels) - live,
            memory_bytes=pulse.beat.memory_bytes,
            kv_bytes=pulse.beat.kv_bytes,
            kv=pulse.beat.kv,
            reason=self._reason,
        )

    def submit(self, submit: Submit) -> Channel:
        """Hand a request to the engine. Raises `ApiError` "draining" while closing, "unavailable" unless ready."""
        if self._closing.is_set():
            raise ApiError("draining", _CLOSED, retry_after_s=5)
        if self._phase != "ready":
            raise ApiError("unavailable", f"the model's engine is {self._phase}; try again soon", retry_after_s=5)
        if submit.id in self._channels:
            raise ValueError(f"{submit.id} is already running")
        channel = self._channels[submit.id] = Channel(submit, self._cancel)
        self._idle.clear()
        self._give(channel)
        return channel

    async def close(self, drain_s: float) -> None:
        """Take nothing new, let what runs end within `drain_s`, stop the process. Idempotent."""
        self._closing.set()
        if self._task is None:
            self._phase = "closed"
            self._settled.set()
            return
        if self._child and self._phase != "ready":
            self._child.kill("the server stopped while it loaded")
        self._send(Drain())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), drain_s)
        self._send(Stop())
        await asyncio.wait({self._task}, timeout=self._limits.stop_s)
        if self._child:
            self._child.kill("it did not stop when told to")
        await self._task

    async def _supervise(self) -> None:
        try:
            while not self._closing.is_set() and await self._one_life():
                pass
        finally:
            self._settle()

    def _settle(self) -> None:
        """Nothing will run any more."""
        closed = self._closing.is_set()
        self._phase = "closed" if closed else "failed"
        for channel in list(self._channels.values()):
            self._put(Fault(channel.submit.id, "engine", _CLOSED if closed else _LOST))
        self._settled.set()
        if not closed and self._facts and self._on_failed:
            self._on_failed(self._reason)

    async def _one_life(self) -> bool:
        """Run one process from start to end and sit out the back-off; False if there must be no other."""
        self._generation += 1
        ending = await self._run()
        if self._closing.is_set():
            return False
        self._reason = f"the engine process ended: {ending.reason}" if self._facts else ending.reason
        give_up = ending.final and self._facts is None
        delay = None if give_up else self._respawns.after_death(time.monotonic())
        if delay is None:
            log.error("%s, generation %d, has failed: %s", self._command.name, self._generation, ending.reason)
            return False
        log.warning("%s, generation %d: %s; next in %.1f s", self._command.name, self._generation, ending.reason, delay)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), delay)
        return True

    async def _run(self) -> Ending:
        self._pulse = Pulse(self._limits, time.monotonic())
        try:
            child = await Child.spawn(self._command, self._generation)
        except OSError as error:
            return Ending(f"it could not be started: {error}", final=True)
        self._child = child
        watch = asyncio.create_task(self._watch(child))
        try:
            await self._read(child)
        finally:
            watch.cancel()
            self._child = None
            self._bereave()
            ending = await child.end()
        return ending

    async def _read(self, child: Child) -> None:
        """Route messages until the process is gone or talks nonsense."""
        try:
            while messages := await child.receive():
                now = time.monotonic()
                for message in messages:
                    self._pulse.hear(message, now)
                    self._route(child, message)
        except msgspec.DecodeError as error:
            child.kill(f"it sent a foreign frame ({error})")

    async def _watch(self, child: Child) -> None:
        """Kill a process that has fallen silent. One that speaks but stalls is caught by `_route`."""
        while (complaint := self._pulse.complaint(time.monotonic())) is None:
            # no longer than one beat: with the first message the bound becomes shorter
            await asyncio.sleep(min(self._pulse.due_at() - time.monotonic(), self._limits.beat_s))
            await asyncio.sleep(_CATCH_UP_S)  # if it was this process that stood still, read first what waits
        child.kill(complaint)

    def _route(self, child: Child, message: FromEngine) -> None:
        match message:
            case Tokens(items=items):
                for token in items:
                    if channel := self._channels.get(token.id):
                        channel.put(token)
            case Heartbeat():
                if complaint := self._pulse.complaint(self._pulse.heard_at):
                    child.kill(complaint)
            case Ready():
                self._become_ready(message)
            case Fault(id="") if self._phase != "ready":
                child.kill(message.message, final=True)
            case Fault(id=""):
                self._fault_started(message.message)
            case Started() | Progress() | Ended() | Fault():
                self._put(message)
            case _:
                assert_never(message)

    def _become_ready(self, facts: Ready) -> None:
        self._facts = facts
        self._phase = "ready"
        self._settled.set()
        for channel in self._channels.values():
            self._give(channel)

    def _bereave(self) -> None:
        """Settle with every request of a process that is gone."""
        self._phase = "restarting" if self._facts else "loading"
        self._fault_started(_LOST)
        for channel in list(self._channels.values()):
            if channel.cancelled:
                self._put(Ended(channel.submit.id, "cancelled", 0))
            elif channel.sends >= _SENDS:
                self._put(Fault(channel.submit.id, "engine", _LOST))

    def _fault_started(self, message: str) -> None:
        for channel in [c for c in self._channels.values() if c.started]:
            self._put(Fault(channel.submit.id, "engine", message))

    def _put(self, message: Message) -> None:
        if channel := self._channels.get(message.id):
            channel.put(message)
            if channel.over:
                del self._channels[message.id]
        if not self._channels:
            self._idle.set()

    def _give(self, channel: Channel) -> None:
        channel.sends += 1
        self._send(channel.submit)

    def _cancel(self, channel: Channel, cancel: Cancel) -> None:
        if self._phase == "ready":
            self._send(cancel)
        else:
            self._put(Ended(channel.submit.id, "cancelled", 0))

    def _send(self, message: ToEngine) -> None:
        if self._child:
            self._child.send(message)
