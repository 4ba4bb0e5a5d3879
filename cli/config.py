"""`memra-mlx config`."""

from __future__ import annotations

from pathlib import Path

import click

from memra_mlx import config as settings


@click.group()
def config() -> None:
    """Show the configuration."""


@config.command()
@click.option("--config", "file", type=click.Path(path_type=Path), help="Another config.toml.")
def show(file: Path | None) -> None:
    """Print each value and where it comes from."""
    try:
        loaded = settings.load({}, file)
    except settings.ConfigError as fault:
        raise click.ClickException(str(fault)) from fault
    for option in settings.OPTIONS:
        value = getattr(loaded, option.name)
        value = "(set)" if option.secret and value else value
        click.echo(f"{option.name} = {value}  [{loaded.sources[option.name]}]")


@config.command()
def path() -> None:
    """Print where config.toml is looked for."""
    click.echo(settings.config_file())
