"""`memra-mlx cache`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from memra_mlx import config
from memra_mlx.cache.survey import Item, Limits, Survey


class _Group(click.Group):
    """Says in one line what is wrong with the configuration."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except config.ConfigError as fault:
            raise click.ClickException(str(fault)) from fault


_folder = click.option("--cache-dir", type=click.Path(path_type=Path), help="Where the caches are.")
_tenant = click.option("--tenant", help="Only this tenant's; `default` without keys.")


def _survey(cache_dir: Path | None) -> Survey:
    settings = config.load({"cache_dir": cache_dir})
    return Survey(settings.cache_dir, Limits(settings.transcript_bytes, settings.disk_bytes))


@click.group(name="cache", cls=_Group)
def cache() -> None:
    """Look at what is kept on disk of conversations; all of it may be deleted at any time."""


@cache.command()
@click.option("--entries", is_flag=True, help="One line for each entry.")
@_tenant
@_folder
def ls(entries: bool, tenant: str | None, cache_dir: Path | None) -> None:
    """Entries and bytes, by kind."""
    survey = _survey(cache_dir)
    if entries:
        for item in survey.items(tenant):
            click.echo(f"{item.part}  {item.kind}  {item.row.size}  {_time(item.row.used)}  {item.id}")
        return
    for (part, kind), (count, size) in survey.totals(tenant).items():
        click.echo(f"{part}  {kind}  {count}  {size}")


@cache.command()
@click.argument("entry", metavar="ID")
@_folder
def show(entry: str, cache_dir: Path | None) -> None:
    """What is known of the entry whose id is ID, or begins so. Never its text."""
    survey = _survey(cache_dir)
    item = _found(survey, entry)
    for name, value in survey.facts(item).items():
        told = _time(value) if name in ("stored", "used") else "-" if value in (None, "", []) else value
        click.echo(f"{name}: {' '.join(told) if isinstance(told, list) else told}")


@cache.command()
@_tenant
@click.option("--all", "everything", is_flag=True, help="Everybody's.")
@_folder
def prune(tenant: str | None, everything: bool, cache_dir: Path | None) -> None:
    """Delete what is kept, of one tenant or of all."""
    if everything == (tenant is not None):
        raise click.UsageError("say whose: --tenant NAME, or --all")
    click.echo(f"{_survey(cache_dir).prune(tenant)} entries were deleted")


@cache.command()
@click.option("--fix", is_flag=True, help="Delete what is damaged.")
@_folder
def verify(fix: bool, cache_dir: Path | None) -> None:
    """Read every entry and tell what is damaged; exit status 1 if anything is and stays."""
    survey = _survey(cache_dir)
    good = bad = 0
    for item in survey.items():
        fault = survey.fault(item)
        good, bad = good + (fault is None), bad + (fault is not None)
        if fault is not None:
            click.echo(f"{item.part}  {item.kind}  {item.id}: {fault}")
            if fix:
                survey.drop(item)
    click.echo(f"{good} good, {bad} damaged{' and deleted' if fix and bad else ''}")
    if bad and not fix:
        raise SystemExit(1)


def _found(survey: Survey, entry: str) -> Item:
    found = [item for item in survey.items() if item.id.startswith(entry)]
    if len(found) != 1:
        raise click.ClickException(f"{len(found)} entries begin with {entry}; `cache ls --entries` lists them")
    return found[0]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
