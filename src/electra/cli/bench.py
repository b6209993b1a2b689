"""The commands that measure speed."""

from pathlib import Path
from typing import Annotated

import typer

from electra.cli.console import consoles
from electra.cli.train import Json, Settings

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe (see `electra recipes`) or a YAML file.")
]
bench_app = typer.Typer(
    no_args_is_help=True, help="Measure training speed, or estimate how long a recipe takes."
)


@bench_app.command("pretrain")
def pretrain(
    name: RecipeName,
    settings: Settings = None,
    *,
    data: Annotated[Path, typer.Option(help="The folder that `electra prepare` wrote.")],
    steps: Annotated[int, typer.Option(help="Steps of electra to measure.", min=9)] = 90,
    peer_steps: Annotated[
        int, typer.Option(help="Steps of transformers to measure; 0 skips it.", min=0)
    ] = 40,
    batches: Annotated[
        str, typer.Option(help="Batch sizes, such as 128,1024; by default the recipe's.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Compare the training speed of a recipe with transformers on the same data.

    The peer is an eager loop over `ElectraForMaskedLM` and `ElectraForPreTraining`; it needs the
    transformers library. "of peak" is the share of the FLOP/s that a large matmul reaches here.

    Example: `electra bench pretrain paper.small --data shards train.compile=true`
    """
    import json
    from dataclasses import asdict

    from rich.table import Table

    from electra.bench.pretrain import bench_pretrain
    from electra.config import override
    from electra.recipes import recipe

    console, progress = consoles()
    config = override(recipe(name), [*(settings or []), f"data.folder={data}"])
    sizes = (batches or str(config.data.batch_size)).split(",")
    configs = [override(config, [f"data.batch_size={size}"]) for size in sizes]
    found = {c.data.batch_size: bench_pretrain(c, steps, peer_steps, progress) for c in configs}
    if as_json:
        sides = {n: {side: asdict(s) for side, s in both.items()} for n, both in found.items()}
        typer.echo(json.dumps(sides))
        return
    table = Table("", "batch", "tokens/s", "range", "of peak", "memory", "", box=None)
    for size, both in found.items():
        ours = both["electra"].tokens_per_second
        for side, speed in both.items():
            memory = "" if speed.memory_gib is None else f"{speed.memory_gib:.2f} GiB"
            spread = f"{speed.slowest:,.0f} to {speed.fastest:,.0f}"
            ratio = ours / speed.tokens_per_second
            table.add_row(
                *(side, f"{size:,}", f"{speed.tokens_per_second:,.0f}", spread),
                *(f"{speed.peak_share:.1%}", memory),
                "" if side == "electra" else f"ours is {ratio:.2f} times the peer",
            )
    console.print(table)


@bench_app.command("whole", hidden=True)  # the old name
@bench_app.command("estimate")
def estimate(
    name: RecipeName,
    settings: Settings = None,
    *,
    data: Annotated[Path, typer.Option(help="The folder that `electra prepare` wrote.")],
    duration: Annotated[
        str,
        typer.Option("--for", "--stretch", help="How long to train, such as 3min or 90s."),
    ] = "3min",
    as_json: Json = False,
) -> None:
    """Train for a few minutes and estimate how long the recipe takes at this pace.

    This is an ordinary run with reports, validation and checkpoints; it is deleted at the end.

    Example: `electra bench estimate paper.small --data shards --for 3min`
    """
    import json
    from dataclasses import asdict

    from electra.bench.estimate import estimate_run, format_duration
    from electra.config import override
    from electra.recipes import recipe

    console, progress = consoles()
    config = override(recipe(name), [*(settings or []), f"data.folder={data}"])
    found = estimate_run(config, duration, progress)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    console.print(
        f"{found.steps:,} steps in {found.seconds:.0f} s, with {found.validations} validations and "
        f"{found.checkpoints} checkpoints: {found.tokens_per_second:,.0f} tokens/s. "
        f"{found.total_steps:,} steps would take {format_duration(found.total_seconds)}.",
        highlight=False,
        soft_wrap=True,
    )
