"""`python -m memra_mlx.engine`: one model's engine process, started by the server."""

from __future__ import annotations

import argparse
import ctypes
import logging
import signal
import socket
import sys
from pathlib import Path

from memra_mlx.engine.worker import Options, run

_NAME = "memra-engine"


def main() -> int:
    """Serve the socket at `--fd`; returns the exit status."""
    arguments = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    _name_process()
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to a whole group, they are the server's to handle
        signal.signal(number, signal.SIG_IGN)
    options = Options(
        model=Path(arguments.model),
        context=arguments.context,
        kv_bytes=arguments.kv_bytes,
        prefill_step=arguments.prefill_step,
        stall_s=arguments.stall_ms / 1000,
        disk=Path(arguments.disk) if arguments.disk else None,
        disk_bytes=arguments.disk_bytes,
    )
    return run(socket.socket(fileno=arguments.fd), options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_NAME)
    parser.add_argument("--fd", type=int, required=True, help="an end of a socketpair")
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--context", type=int, default=0, help="most tokens of prompt and answer; 0: the model's own")
    parser.add_argument("--kv-bytes", type=int, default=0, help="memory for KV state; 0: what the device has")
    parser.add_argument("--prefill-step", type=int, default=0, help="tokens of one evaluation; 0: by device")
    parser.add_argument("--stall-ms", type=int, default=250, help="longest pause that a prefill makes in other streams")
    parser.add_argument("--disk", default="", help="folder for KV state on disk; none if empty")
    parser.add_argument("--disk-bytes", type=int, default=0, help="most bytes there, with those of other engines")
    return parser


def _name_process() -> None:
    """The name that `ps -o comm` and Activity Monitor's sample show."""
    if sys.platform == "linux":
        Path("/proc/self/comm").write_text(_NAME)
    elif sys.platform == "darwin":
        ctypes.CDLL(None).pthread_setname_np(_NAME.encode())


if __name__ == "__main__":
    sys.exit(main())
