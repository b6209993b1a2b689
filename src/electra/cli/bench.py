"""The verb that measures speed."""

from pathlib import Path
from typing import Annotated

import typer

from electra.cli.console import consoles
from electra.cli.train import Json, Settings

bench_app = typer.Typer(no_args_is_help=True, help="Measure speed against a peer, in one run.")


@bench_app.callback()
def root() -> None:
    """Measure speed against a peer, in one run."""


@bench_app.command("pretrain")
def pretrain(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="One of  electra recipes .")],
    settings: Settings = None,
    *,
    data: Annotated[Path, typer.Option(help="The folder that  electra prepare  wrote.")],
    steps: Annotated[int, typer.Option(help="Steps of ours to measure.", min=9)] = 90,
    peer_steps: Annotated[
        int, typer.Option(help="Steps of the peer; 0 leaves it out.", min=0)
    ] = 40,
    as_json: Json = False,
) -> None:
    """Measure a recipe's tokens per second, and those of transformers' classes on the same data.

    Ours is an ordinary run; the peer is a plain loop with ElectraForMaskedLM and
    ElectraForPreTraining, eager, which needs the library transformers.

    Example:  electra bench pretrain paper.small --data shards train.compile=true
    """
    import json
    from dataclasses import asdict

    from rich.table import Table

    from electra.bench.pretrain import bench_pretrain
    from electra.config import override
    from electra.recipes import recipe

    console, progress = consoles()
    config = override(recipe(name), [*(settings or []), f"data.folder={data}"])
    found = bench_pretrain(config, steps, peer_steps, progress)
    if as_json:
        typer.echo(json.dumps({side: asdict(speed) for side, speed in found.items()}))
        return
    table = Table("", "tokens/s", "range", "memory", box=None)
    for side, speed in found.items():
        memory = "" if speed.memory_gib is None else f"{speed.memory_gib:.2f} GiB"
        spread = f"{speed.slowest:,.0f} to {speed.fastest:,.0f}"
        table.add_row(side, f"{speed.tokens_per_second:,.0f}", spread, memory)
    console.print(table)
    if "transformers" in found:
        ratio = found["electra"].tokens_per_second / found["transformers"].tokens_per_second
        console.print(f"{ratio:.2f} times the peer")
