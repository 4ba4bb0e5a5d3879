"""`memra-mlx ledger`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from memra_mlx import config
from memra_mlx.admission import ledger_read
from memra_mlx.admission.ledger_read import COLUMNS, GROUPS, Filter, NoLedgerError

_DAY = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])


class _Group(click.Group):
    """Says in one line that there is no ledger."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (NoLedgerError, config.ConfigError) as fault:
            raise click.ClickException(str(fault)) from fault


def _filtered(command: Callable[..., None]) -> Callable[..., None]:
    """The options that all three commands have."""
    for option in (
        click.option("--state-dir", type=click.Path(path_type=Path), help="Where the ledger is."),
        click.option("--until", type=_DAY, help="Opened before this time (UTC)."),
        click.option("--since", type=_DAY, help="Opened at or after this time (UTC)."),
        click.option("--outcome", help="Only this outcome; `open` for running requests."),
        click.option("--tenant", help="Only this tenant."),
    ):
        command = option(command)
    return command


def _filter(options: dict[str, Any]) -> tuple[Path, Filter]:
    folder = options["state_dir"] or config.load({}).state_dir
    times = [at.replace(tzinfo=UTC).timestamp() if at else None for at in (options["since"], options["until"])]
    return folder, Filter(options["tenant"], options["outcome"], *times)


@click.group(cls=_Group)
def ledger() -> None:
    """Read the ledger: one row a request, also while the server runs."""


@ledger.command()
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many, newest first.")
@_filtered
def ls(limit: int, **options: Any) -> None:
    """List receipts."""
    folder, chosen = _filter(options)
    for row in ledger_read.rows(folder, chosen, limit, newest_first=True):
        opened = datetime.fromtimestamp(row["opened"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        tokens = f"{row['prompt_tokens']}+{row['completion_tokens']} cached={row['cached_tokens']}"
        debit = f"debit={row['debit_prompt']}+{row['debit_completion']} cost={_money(row['cost'])}"
        click.echo(f"{opened} {row['id']} {row['route']} {row['tenant']} {row['outcome'] or 'open'} {tokens} {debit}")


@ledger.command(name="sum")
@click.option("--by", "groups", type=click.Choice(sorted(GROUPS)), multiple=True, help="Repeatable; by tenant.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, costs in micro-units.")
@_filtered
def total(groups: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Sum requests, tokens and costs."""
    folder, chosen = _filter(options)
    rows = ledger_read.sums(folder, chosen, groups or ("tenant",))
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        cost = _money(row.pop("cost"))
        click.echo("  ".join([*(f"{name}={value}" for name, value in row.items()), f"cost={cost}"]))


@ledger.command()
@click.option("--format", "form", type=click.Choice(["csv", "jsonl"]), default="csv", show_default=True)
@_filtered
def export(form: str, **options: Any) -> None:
    """Write all receipts to standard output, oldest first; money in micro-units, times in unix seconds."""
    folder, chosen = _filter(options)
    writer = csv.DictWriter(sys.stdout, COLUMNS)
    for index, row in enumerate(ledger_read.rows(folder, chosen)):
        if form == "jsonl":
            click.echo(json.dumps(row))
            continue
        if not index:
            writer.writeheader()
        writer.writerow(row)


def _money(micros: int | None) -> str:
    return f"{(micros or 0) / 1_000_000:.6f}"
