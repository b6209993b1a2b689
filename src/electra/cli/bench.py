"""The verbs that measure speed."""

from pathlib import Path
from typing import Annotated

import typer

from electra.cli.console import consoles
from electra.cli.train import Json, Settings

bench_app = typer.Typer(no_args_is_help=True, help="Measure speed.")


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
    batches: Annotated[
        str, typer.Option(help="Rows in a step, one or several: 128,1024; else the recipe's.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Measure a recipe's tokens per second, and those of transformers' classes on the same data.

    Ours is an ordinary run, on CUDA with each step as one graph; the peer is a plain loop with
    ElectraForMaskedLM and ElectraForPreTraining, eager, which needs the library transformers.
    Peak is the share of what a large matrix product reaches on this device.

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


@bench_app.command("whole")
def whole(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="One of  electra recipes .")],
    settings: Settings = None,
    *,
    data: Annotated[Path, typer.Option(help="The folder that  electra prepare  wrote.")],
    stretch: Annotated[str, typer.Option(help="For how long to train, as 3min or 90s.")] = "3min",
    as_json: Json = False,
) -> None:
    """Train for a few minutes, and say how long the whole recipe would take at this pace.

    An ordinary run, with its reports, looks at held-out text and checkpoints, which is thrown away.

    Example:  electra bench whole paper.small --data shards --stretch 3min
    """
    import json
    from dataclasses import asdict

    from electra.bench.estimate import estimate_run
    from electra.config import override
    from electra.recipes import recipe

    console, progress = consoles()
    config = override(recipe(name), [*(settings or []), f"data.folder={data}"])
    found = estimate_run(config, stretch, progress)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    hours, minutes = divmod(round(found.whole_seconds / 60), 60)
    console.print(
        f"{found.steps:,} steps in {found.seconds:.0f} s, {found.looks} looks at held-out text and "
        f"{found.checkpoints} checkpoints among them: {found.tokens_per_second:,.0f} tokens/s. "
        f"{found.whole_steps:,} steps would take {hours} h {minutes} min.",
        highlight=False,
        soft_wrap=True,
    )
