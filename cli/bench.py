"""`memra-mlx bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from memra_mlx.bench import order as orders
from memra_mlx.bench import report, runner
from memra_mlx.bench.plan import Sizes
from memra_mlx.bench.wire import BenchError, Endpoint


def _sizes(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Sizes:
    try:
        return Sizes.parse(values)
    except ValueError as fault:
        raise click.BadParameter(str(fault)) from fault


def _peers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[Endpoint]:
    peers = []
    for value in values:
        name, _, rest = value.partition("=")
        base, _, model = rest.partition("#")
        if not base.startswith("http"):
            raise click.BadParameter(f"{value!r} is not NAME=URL or NAME=URL#MODEL")
        peers.append(Endpoint(name, base.rstrip("/"), model or "default_model"))
    return peers


@click.command()
@click.option("--base-url", default="http://127.0.0.1:8080", show_default=True, help="The server, without /v1.")
@click.option("--model", help="Its model; the first of /v1/models if not given.")
@click.option("--key", default="local", help="Its API key.")
@click.option("--peer", "peers", multiple=True, callback=_peers, metavar="NAME=URL[#MODEL]", help="Compare with it.")
@click.option("--scenario", "scenarios", type=click.Choice(runner.SCENARIOS), multiple=True, help="Repeatable; all.")
@click.option("--local", type=click.Path(exists=True, file_okay=False, path_type=Path), help="The model's folder.")
@click.option("--serve", default="", metavar="COMMAND", help="Starts the server; `restart` needs it.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Each: every server in turn.")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    callback=_sizes,
    metavar="NAME=N",
    help=f"One of {', '.join(Sizes.names())}; in tokens but for turns and clients.",
)
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write all raw numbers here.")
def bench(file: Path | None, **options: Any) -> None:
    """Measure an OpenAI-compatible server; medians over rounds, ratios against peers and mlx-lm without a server.

    With --local, `single` and `session` compare with mlx-lm's own `stream_generate` on that folder.
    """
    order = _order(options)
    about = orders.about(order)
    results = []
    try:
        for result in orders.carry_out(order):
            click.echo(report.table(result, runner.GOALS) + "\n")
            results.append(result)
    except BenchError as fault:
        raise click.ClickException(str(fault)) from fault
    finally:
        if file:
            found = report.document(results, runner.GOALS, about)
            file.write_text(json.dumps(found, indent=1, ensure_ascii=False))


def _order(options: dict[str, Any]) -> orders.Order:
    serve = options["serve"]
    scenarios = options["scenarios"] or [name for name in runner.SCENARIOS if serve or name != orders.RESTART]
    if orders.RESTART in scenarios and not serve:
        raise click.UsageError("--scenario restart needs --serve")
    return orders.Order(
        base=options["base_url"].rstrip("/").removesuffix("/v1"),
        model=options["model"] or "",
        key=options["key"],
        peers=options["peers"],
        scenarios=scenarios,
        rounds=options["rounds"],
        sizes=options["sizes"],
        local=options["local"],
        serve=serve,
    )
