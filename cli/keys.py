"""`memra-mlx keys`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memra_mlx import config
from memra_mlx.admission import keyfile
from memra_mlx.admission.keyring import KeyringError, LaneClass


def _file(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path:
    """The keyring that `serve` would use."""
    if value:
        return value
    try:
        return config.load({}).keyring_file
    except config.ConfigError as fault:
        raise click.ClickException(str(fault)) from fault


_keyring = click.option(
    "--file", type=click.Path(path_type=Path), callback=_file, help="The keyring; keys.toml in the state dir."
)


class _Group(click.Group):
    """Says what is wrong with a keyring in one line."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (KeyringError, OSError) as fault:
            raise click.ClickException(str(fault)) from fault


@click.group(cls=_Group)
def keys() -> None:
    """Make, list and revoke API keys. A running server takes changes up by itself."""


@keys.command()
@click.argument("tenant")
@click.option("--class", "lane_class", type=click.Choice(["interactive", "batch"]), default="interactive")
@click.option("--concurrency", type=click.IntRange(1), help="The tenant's requests at once, with this key.")
@_keyring
def gen(tenant: str, lane_class: LaneClass, concurrency: int | None, file: Path) -> None:
    """Make a key for TENANT and print it. It is printed once and kept nowhere; the file holds its SHA-256."""
    click.echo(keyfile.generate(file, tenant, lane_class, concurrency))


@keys.command()
@_keyring
def ls(file: Path) -> None:
    """List keys: id, tenant, class, state, concurrency, and the tenant's budget."""
    ring = keyfile.listing(file)
    for key in ring.keys:
        budget = ring.terms(key.tenant).budget
        state = "enabled" if key.enabled else "disabled"
        money = "-" if budget is None else f"{budget / 1_000_000:g}"
        click.echo(f"{key.id}  {key.tenant}  {key.lane_class}  {state}  {key.concurrency or '-'}  {money}")


@keys.command()
@click.argument("key_id", metavar="ID")
@_keyring
def revoke(key_id: str, file: Path) -> None:
    """Disable the key whose id (or the beginning of it) is ID; requests with it are answered 403."""
    key = keyfile.revoke(file, key_id)
    click.echo(f"{key.id} of {key.tenant} is disabled")
