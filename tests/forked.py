"""Server processes that skip the imports: a launcher imports the server once, then forks one process per start.

Importing costs seconds of a server's start, and the cases start dozens. A forked server is a process like any other and
enters by the same command; `tests/test_packaging.py` and the `live` fixture start the installed command itself.
"""

import atexit
import contextlib
import faulthandler
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

SUPPORTED = sys.platform == "linux"


class Forked:
    """A running process, with the part of `subprocess.Popen` that tests use; `stdout` has its error output too."""

    def __init__(self, link: socket.socket, out: int):
        self._link = link
        self.pid = int(_line(link))
        self.stdout = os.fdopen(out, encoding="utf-8", errors="replace")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._link], [], [], 0)[0]:
            self.returncode = int(_line(self._link))
            self._link.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, negative for a signal. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            select.select([self._link], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("memra-mlx", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it may end, and be reaped, in between
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _line(link: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = link.recv(1)
        if not piece:
            raise RuntimeError("the launcher of the servers is gone")
        line += piece
    return line


@cache
def _launcher() -> Path:
    """The address of this session's launcher, which ends with this process."""
    address = Path(tempfile.mkdtemp(prefix="memra-launcher-")) / "socket"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(address))
    server.listen()
    process = subprocess.Popen(
        [sys.executable, __file__, str(server.fileno())],
        pass_fds=[server.fileno()], stdin=subprocess.PIPE,
    )  # fmt: skip
    server.close()
    atexit.register(_close, process, address.parent)
    return address


def _close(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.communicate()  # its stdin ends, so it ends
    shutil.rmtree(folder)


def start(argv: Sequence[str], env: Mapping[str, str], folder: Path) -> Forked:
    """Start `memra-mlx` with these arguments, as a process of its own."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(str(_launcher()))
    ours, theirs = os.pipe()
    message = json.dumps({"argv": list(argv), "env": dict(env), "folder": str(folder)}).encode()
    socket.send_fds(link, [len(message).to_bytes(4, "little")], [theirs])
    link.sendall(message)
    os.close(theirs)
    return Forked(link, ours)


def _serve(listener: socket.socket) -> NoReturn:
    """The launcher: import once, then fork a watcher for every start."""
    import mlx_lm.utils  # noqa: F401  most of the time goes here

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _watch(link)
        link.close()


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


def _watch(link: socket.socket) -> NoReturn:
    """Fork the server, tell its pid, and then its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, (out,), _, _ = socket.recv_fds(link, 4, 1)
    message = json.loads(link.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL))
    pid = os.fork()
    if pid == 0:
        link.close()
        _become(message, out)
    os.close(out)
    link.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        link.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(message: Mapping[str, Any], out: int) -> NoReturn:
    from memra_mlx.cli.main import main

    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(out)
    os.environ.clear()
    os.environ.update(message["env"])
    os.chdir(message["folder"])
    faulthandler.register(signal.SIGUSR1)
    sys.argv = ["memra-mlx", *message["argv"]]
    code: Any = 0
    try:
        main(message["argv"], prog_name="memra-mlx")
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
