"""`memra-mlx serve`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from memra_mlx import config, logs


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--host", help="Address to bind (127.0.0.1).")
@click.option("--port", help="Port to bind (8080); 0 takes a free one.")
@click.option("--context", help="Context window in tokens; the model's own if not given.")
@click.option("--kv-bytes", help="Memory for KV caches, such as 8G.")
@click.option("--alias", "aliases", multiple=True, metavar="NAME=MODEL", help="Serve NAME (may end in *) with MODEL.")
@click.option("--any-model", is_flag=True, default=None, help="Serve unknown names with the first model.")
@click.option("--cors-origins", metavar="ORIGIN,...", help="Web pages that may use this server; * is every page.")
@click.option("--body-limit", help="Largest request body, such as 64M.")
@click.option("--drain-s", help="Seconds that running requests get after SIGTERM.")
@click.option("--engine", help="mlx, or scripted:FILE for tests.")
@click.option("--insecure-open", is_flag=True, default=None, help="Serve without keys on an address others reach.")
@click.option("--log-json", is_flag=True, default=None, help="Log as JSON lines.")
@click.option("--config", "file", type=click.Path(path_type=Path), help="Another config.toml.")
def serve(file: Path | None, **flags: Any) -> None:
    """Serve MODELs: a folder, a hub id, or alias=either. Without any, a tiny embedded test model is served."""
    from memra_mlx.app import Server  # costs most of a second; --help should not pay it
    from memra_mlx.engine import spawn

    try:
        settings = config.load(flags, file)
        spawn.check(settings)
    except config.ConfigError as fault:
        raise click.ClickException(str(fault)) from fault
    logs.setup(settings.log_json)
    if settings.embedded and settings.engine == "mlx":
        click.echo(
            "no model was named: serving the embedded test model, which only runs commands and repeats text", err=True
        )
    try:
        status = asyncio.run(Server(settings).run(lambda line: click.echo(line)))
    except (OSError, config.ConfigError) as fault:
        raise click.ClickException(str(getattr(fault, "strerror", None) or fault)) from fault
    leave(status)


def leave(status: int) -> NoReturn:
    """End the process with `status`. All is closed and written by now; tearing the interpreter down as well would race
    with the native threads of MLX and the tokenizers, which now and then ends in an abort instead of our status."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
