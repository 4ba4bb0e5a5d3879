"""The `memra-mlx` command."""

from __future__ import annotations

import click

from memra_mlx import __version__
from memra_mlx.cli.bench import bench
from memra_mlx.cli.cache_commands import cache
from memra_mlx.cli.config import config
from memra_mlx.cli.keys import keys
from memra_mlx.cli.ledger import ledger
from memra_mlx.cli.serve import serve


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="memra-mlx")
def main() -> None:
    """A local model server for coding agents."""


main.add_command(serve)
main.add_command(config)
main.add_command(cache)
main.add_command(keys)
main.add_command(ledger)
main.add_command(bench)
