"""An engine that answers from a script over the real protocol, without a model: `python -m memra_mlx.engine.scripted`.

One event loop. Requests interleave token by token; the tokens of one turn of the loop make one step.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from memra_mlx.engine import protocol
from memra_mlx.engine.protocol import (
    Cancel,
    Drain,
    Ended,
    EndReason,
    Fault,
    Frames,
    FromEngine,
    Heartbeat,
    Progress,
    Ready,
    Started,
    Stop,
    Submit,
    ToEngine,
    Token,
    Tokens,
)
from memra_mlx.engine.script import Break, Say, Script, Turn, load, vocabulary
from memra_mlx.engine.scripted_prefixes import Prefixes
from memra_mlx.engine.supervisor import EngineCommand

_CHUNK = 1 << 16
_PROGRESS_S = 1.0


def command(script: Path, base_vocab: int, *, name: str = "scripted", beat_s: float = 1.0) -> EngineCommand:
    """How to start the engine that speaks `script`, whose words are the tokens from `base_vocab` on."""
    numbers = ("--base-vocab", str(base_vocab), "--beat-s", str(beat_s), "--generation", "{generation}")
    return EngineCommand.module(name, "memra_mlx.engine.scripted", "--script", str(script), *numbers)


@dataclass(frozen=True, slots=True)
class Settings:
    """The command line. `generation` counts the processes that one server has started in turn, from 1."""

    fd: int
    script: Path
    base_vocab: int
    beat_s: float
    generation: int


@dataclass(slots=True)
class Live:
    """A running request. `done` prompt tokens are computed, `answer` is what was said."""

    submit: Submit
    done: int = 0
    answer: list[int] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class Scripted:
    """The engine's side of one connection."""

    def __init__(self, settings: Settings, script: Script, writer: asyncio.StreamWriter):
        self._settings = settings
        self._script = script
        self._writer = writer
        words = vocabulary(script)
        self._ids = {word: settings.base_vocab + i for i, word in enumerate(words)}
        self._prefixes = Prefixes()
        self._live: dict[str, Live] = {}
        self._arrived = 0
        self._fired: Counter[int] = Counter()  # by identity of the entry: the script lives as long as this does
        self._step: list[Token] = []
        self._steps = 0
        self._stepped_at = time.monotonic()
        self._hung = False
        self._draining = False

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Load, then answer until Stop or the end of the connection."""
        beating = asyncio.create_task(self._beat())
        try:
            await asyncio.sleep(self._script.load_s)
            self._send(self._facts())
            await self._obey(reader)
        finally:
            beating.cancel()

    async def _obey(self, reader: asyncio.StreamReader) -> None:
        frames = Frames(ToEngine)
        while data := await reader.read(_CHUNK):
            for message in frames.push(data):
                if isinstance(message, Stop) and not self._hung:
                    return
                self._take(message)

    def _facts(self) -> Ready:
        return Ready(
            model_type="scripted",
            context=self._script.context,
            vocab_size=self._settings.base_vocab + len(self._ids),
            eos_ids=[],
            lane_kind="batch",
            parameters=0,
            weight_bytes=0,
            kv_bytes_per_token=0,
            device="script",
        )

    def _take(self, message: object) -> None:
        if self._hung:
            return
        match message:
            case Submit(id=id) if self._draining:
                self._send(Fault(id, "engine", "the engine is draining"))
            case Submit():
                self._begin(message)
            case Cancel(id=id, keep=keep):
                if live := self._live.get(id):
                    if live.task:
                        live.task.cancel()
                    self._end(live, "cancelled", keep)
            case Drain():
                self._draining = True

    def _begin(self, submit: Submit) -> None:
        if not self._live:
            self._stepped_at = time.monotonic()
        live = self._live[submit.id] = Live(submit)
        turn = self._script.turn(self._arrived, self._settings.generation)
        self._arrived += 1
        live.done = self._prefixes.longest(submit.namespace, submit.prompt_ids)
        self._send(Started(submit.id, live.done, "memory" if live.done else "none"))
        live.task = asyncio.create_task(self._answer(live, turn))

    async def _answer(self, live: Live, turn: Turn) -> None:
        await self._prefill(live)
        if any(isinstance(e, Break) and e.kind == "raise_in_prefill" and self._fires(e) for e in turn):
            self._break_off(live)
            return
        for entry in turn:
            if isinstance(entry, Break):
                if entry.kind != "raise_in_prefill" and self._fires(entry):
                    await self._break(live, entry)
                    return
            elif reason := await self._say(live, entry):
                self._end(live, reason)
                return
        self._end(live, "stop")

    async def _prefill(self, live: Live) -> None:
        submit, cached = live.submit, live.done
        total = len(submit.prompt_ids)
        chunks = max(1, round(self._script.prefill_s / _PROGRESS_S))
        for chunk in range(1, chunks + 1):
            await asyncio.sleep(self._script.prefill_s / chunks)
            await self._moving()
            live.done = cached + (total - cached) * chunk // chunks
            self._count_step()
            self._send(Progress(submit.id, live.done, total))
        self._prefixes.add(submit.namespace, submit.prompt_ids)

    async def _say(self, live: Live, entry: Say) -> EndReason | None:
        """Generate the tokens of one entry; the reason if that ends the answer."""
        submit, token = live.submit, self._ids[entry.data]
        if token in submit.stop_ids:
            return "stop"
        for _ in range(entry.count):
            if len(live.answer) >= submit.max_tokens:
                return "length"
            await asyncio.sleep(entry.delay_s)
            await self._moving()
            live.answer.append(token)
            self._emit(live, token)
            await self._writer.drain()
        return "length" if len(live.answer) >= submit.max_tokens else None

    def _fires(self, entry: Break) -> bool:
        """Whether a fault happens this time. Earlier processes are taken to have died of the same one."""
        before = self._settings.generation - 1 if entry.deadly else self._fired[id(entry)]
        self._fired[id(entry)] += 1
        return entry.times is None or before < entry.times

    async def _break(self, live: Live, entry: Break) -> None:
        await self._moving()
        self._flush()
        match entry.kind:
            case "kill_thread":
                os._exit(1)
            case "hang":
                self._hung = True
            case "raise" | "raise_in_prefill":
                self._break_off(live)

    def _break_off(self, live: Live) -> None:
        del self._live[live.submit.id]
        self._send(Fault(live.submit.id, "engine", "the engine failed while generating (a fault of the script)"))

    def _end(self, live: Live, reason: EndReason, keep: int = -1) -> None:
        submit = live.submit
        del self._live[submit.id]
        kept = live.answer if keep < 0 else live.answer[:keep]
        known = [*submit.prompt_ids[: live.done], *kept]
        self._prefixes.add(submit.namespace, known)
        self._send(Ended(submit.id, reason, len(live.answer), len(known)))

    async def _moving(self) -> None:
        """A step can be made; never again in an engine that hangs."""
        if self._hung:
            await asyncio.Event().wait()

    def _emit(self, live: Live, token: int) -> None:
        if not self._step:
            asyncio.get_running_loop().call_soon(self._flush)
        certain = live.submit.sampling.logprobs >= 0
        self._step.append(Token(live.submit.id, token, 0.0 if certain else None, [(token, 0.0)] if certain else None))

    def _flush(self) -> None:
        """Send the step that is being made."""
        if self._step:
            items, self._step = self._step, []
            self._count_step()
            self._writer.write(protocol.encode(Tokens(items)))

    def _count_step(self) -> None:
        self._steps += 1
        self._stepped_at = time.monotonic()

    def _send(self, message: FromEngine) -> None:
        self._flush()
        self._writer.write(protocol.encode(message))

    async def _beat(self) -> None:
        while True:
            age = time.monotonic() - self._stepped_at if self._live else 0.0
            self._writer.write(protocol.encode(Heartbeat(age, self._steps, len(self._live), 0)))
            await asyncio.sleep(self._settings.beat_s)


async def run(settings: Settings) -> None:
    """Speak the script over the socket `settings.fd` until the other side has had enough."""
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=settings.fd))
    try:
        script = load(settings.script)
    except ValueError as error:
        writer.write(protocol.encode(Fault("", "engine", str(error))))
    else:
        with suppress(ConnectionError):
            await Scripted(settings, script, writer).serve(reader)
    with suppress(ConnectionError):
        writer.close()
        await writer.wait_closed()


def main(arguments: Sequence[str] | None = None) -> None:
    """The process."""
    parser = argparse.ArgumentParser(prog="memra_mlx.engine.scripted", description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--base-vocab", type=int, required=True)
    parser.add_argument("--beat-s", type=float, default=1.0)
    parser.add_argument("--generation", type=int, default=1)
    asyncio.run(run(Settings(**vars(parser.parse_args(arguments)))))


if __name__ == "__main__":
    main()
