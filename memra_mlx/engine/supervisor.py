"""One engine process: started, spoken to, reaped.

The process gets one end of a socketpair; its stdout and stderr come out of ours line by line, under its name. It runs
in a session of its own, so that Ctrl-C in a terminal reaches the server alone, which then drains.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from memra_mlx.engine.protocol import Frames, FromEngine, ToEngine, encode

_CHUNK = 1 << 16
_LINGER_S = 0.2  # how long a child of the dead process may hold our socket or its log
_REAP_S = 10.0  # a process stuck in a driver can outlive SIGKILL


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """How to start an engine process. Each start appends `--fd N`; an argument `{generation}` becomes its number.

    `name` marks the lines of its log.
    """

    argv: tuple[str, ...]
    name: str = "engine"

    @classmethod
    def module(cls, name: str, module: str, *arguments: str) -> EngineCommand:
        """Run `module` with this interpreter."""
        # -P: a file of the same name in the user's working directory must not be found before the real module
        return cls((sys.executable, "-P", "-m", module, *arguments), name)

    def filled(self, fd: int, generation: int) -> list[str]:
        """The arguments of one start."""
        numbered = [str(generation) if argument == "{generation}" else argument for argument in self.argv]
        return [*numbered, "--fd", str(fd)]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended. `final`: it gave up by itself, so that starting it again is of no use while it loads."""

    reason: str
    final: bool


class Child:
    """A running engine process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        pipe: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        log: asyncio.Task[str],
    ):
        self._process = process
        self._reader, self._writer = pipe
        self._frames = Frames(FromEngine)
        self._log = log
        self._sentence: Ending | None = None
        self._exit = asyncio.create_task(process.wait())
        self._exit.add_done_callback(self._hang_up)

    @classmethod
    async def spawn(cls, command: EngineCommand, generation: int) -> Child:
        """Start the process. Raises OSError where the system refuses."""
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command.filled(theirs.fileno(), generation),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            os.close(read_end)
            raise
        finally:
            theirs.close()
            os.close(write_end)
        log = asyncio.create_task(_copy_log(read_end, command.name))
        return cls(process, await asyncio.open_unix_connection(sock=ours), log)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, message: ToEngine) -> None:
        """Queue a message; it is lost if the process is gone."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def receive(self) -> list[FromEngine]:
        """The next messages; empty once the process is gone. Raises `msgspec.DecodeError` on a foreign frame."""
        messages: list[object] = []
        while not messages:
            try:
                data = await self._reader.read(_CHUNK)
            except ConnectionError:
                return []
            if not data:
                return []
            messages = self._frames.push(data)
        return cast(list[FromEngine], messages)

    def kill(self, reason: str, *, final: bool = False) -> None:
        """SIGKILL. The first reason given is how it ended."""
        if self._process.returncode is None:
            self._sentence = self._sentence or Ending(reason, final)
            with suppress(ProcessLookupError):
                self._process.kill()
            self._hang_up()

    async def end(self) -> Ending:
        """Kill what still runs, reap it, close everything; say how it ended."""
        await asyncio.wait({self._exit}, timeout=_LINGER_S)  # the connection ends a moment before the process
        self.kill("it closed its connection")
        await asyncio.wait({self._exit}, timeout=_REAP_S)
        self._exit.cancel()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
        await asyncio.wait({self._log}, timeout=_LINGER_S)
        self._log.cancel()
        return self._sentence or self._own_ending()

    def _own_ending(self) -> Ending:
        code = self._process.returncode
        if code is not None and code < 0:
            return Ending(f"it was killed by {_signal_name(-code)}", final=False)
        last = "" if self._log.cancelled() or not self._log.done() else self._log.result()
        return Ending(last or f"it exited with status {code}", final=True)

    def _hang_up(self, _: object = None) -> None:
        """End the connection soon, also where another process has inherited its end or SIGKILL takes its time."""
        asyncio.get_running_loop().call_later(_LINGER_S, self._writer.close)


async def _copy_log(fd: int, name: str) -> str:
    """Copy lines to stderr until the pipe ends; return the last one."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0))
    rest, last = b"", ""
    try:
        while data := await reader.read(_CHUNK):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                last = _print(line, name) or last
        return _print(rest, name) or last
    finally:
        transport.close()


def _print(line: bytes, name: str) -> str:
    text = line.decode(errors="replace").strip()
    if text:
        print(f"[{name}] {text}", file=sys.stderr, flush=True)
    return text


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
