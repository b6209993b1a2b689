"""The commands for research: flops, study."""

from pathlib import Path
from typing import Annotated, Any

import typer

from electra.cli.console import consoles, lasting, warn
from electra.cli.train import Json, Settings


def flops(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe (see `electra recipes`) or a YAML file; without it, the paper's models.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    *,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Length of the run: 10000steps, 1e9tokens or 1e16flops.",
            show_default="the recipe's",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Count the FLOPs of a recipe, by the paper's rules and on the hardware.

    The paper's rules count every operation, an embedding lookup as a multiplication with a one-hot
    vector, and a backward pass like one forward pass. The hardware count has only the matrix
    multiplications, and a backward pass costs two forward passes; budgets in FLOPs use this one.

    Example: `electra flops paper.small --budget 1e16flops generator.width=0.5`
    """
    import json

    from electra.errors import UserError

    if name is None and (settings or budget):
        raise UserError("Name a recipe: 'electra recipes' lists them.")
    if name is not None and "=" in name:
        raise UserError(f"'{name}' is a setting, not a recipe: name a recipe first.")
    if name is None:
        from electra.train.compute_cost import paper_costs

        found: Any = paper_costs()
    else:
        from electra.config import override
        from electra.recipes import recipe
        from electra.train.compute_cost import recipe_cost

        changes = [*(settings or []), *([f"train.budget={budget}"] if budget else [])]
        found = {"recipe": name, **recipe_cost(override(recipe(name), changes))}
    if as_json:
        typer.echo(json.dumps(found))
    elif name is None:
        _show_paper(found)
    else:
        _show_recipe(found)


@lasting()
def study(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="The study; without it, all are listed.", show_default=False
        ),
    ] = None,
    settings: Settings = None,
    *,
    data: Annotated[
        Path | None,
        typer.Option(help="The folder that `electra prepare` wrote.", show_default=False),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The output folder.", show_default=False)] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="`tiny` (minutes on a CPU), `small` (a GPU) or `paper` (the paper's length)."
        ),
    ] = "tiny",
    budget: Annotated[
        str | None,
        typer.Option(
            help="FLOPs of each arm, such as 5e16flops; for `efficiency` also several, such as "
            "2e16flops,6e16flops,25min; for `ablation` also a time or a number of steps.",
            show_default="the scale's",
        ),
    ] = None,
    seeds: Annotated[
        str,
        typer.Option(
            help="Pre-training seeds: `2` means seeds 0 and 1, `3,7` means seeds 3 and 7."
        ),
    ] = "2",
    learning_rates: Annotated[
        str,
        typer.Option(
            help="Train each arm with each of these, such as `5e-4,1e-3`, and keep the one with "
            "the lowest held-out loss.",
            show_default="the recipe's",
        ),
    ] = "",
    arm: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            metavar="NAME: KEY=VALUE ...",
            help="An arm of `ablation`, such as `no dropout: model.dropout=0`; may be given "
            "several times.",
            show_default=False,
        ),
    ] = None,
    arms: Annotated[
        str, typer.Option(help="Only these arms, such as `ELECTRA,BERT`.", show_default="all")
    ] = "",
    reuse: Annotated[
        list[Path] | None,
        typer.Option(
            help="The --out of another study, or of a part of this one: runs with the same "
            "settings, data and scores are copied from it; may be given several times.",
            show_default=False,
        ),
    ] = None,
    glue: Annotated[
        Path | None,
        typer.Option(help="Score by GLUE: the folder with its tasks.", show_default=False),
    ] = None,
    tasks: Annotated[
        str, typer.Option(help="Only these tasks of GLUE.", show_default="all in the folder")
    ] = "",
    task: Annotated[
        str | None,
        typer.Option(help="Score by a task of `electra finetune`.", show_default=False),
    ] = None,
    task_data: Annotated[
        Path | None, typer.Option(help="That task's folder or file.", show_default=False)
    ] = None,
    tuning: Annotated[
        list[str] | None,
        typer.Option(
            "--tuning",
            metavar="KEY=VALUE",
            help="A fine-tuning setting, such as `lr=1e-3`; may be given several times.",
            show_default=False,
        ),
    ] = None,
    tuning_seeds: Annotated[str, typer.Option(help="Fine-tuning seeds, as for --seeds.")] = "3",
    blimp: Annotated[
        Path | None,
        typer.Option(help="Score by BLiMP: the folder with its JSON lines.", show_default=False),
    ] = None,
    blimp_pairs: Annotated[
        int, typer.Option(min=0, help="Pairs of each BLiMP file; 0 means all.")
    ] = 0,
) -> None:
    """Reproduce a table or a figure of the paper, or try changes of your own (`ablation`).

    The output folder gets a run for each arm and seed under `runs`, a line for each of them in
    `results.jsonl`, and `table.md`, `figure.png` and `page.md` with the paper's numbers and ours.
    Ctrl-C saves; the same command continues with what is missing, and can add seeds or scores.

    Example: `electra study objectives --data shards --out studies/objectives --blimp blimp`

    Example: `electra study ablation --arm "wide: model.hidden=192" --arm optim.lr=1e-3 --data
    shards --out studies/mine --blimp blimp`
    """
    import shlex
    import sys

    from electra.cli.finetune import read_names, read_seeds
    from electra.config import override
    from electra.errors import UserError
    from electra.finetune.settings import FinetuneConfig
    from electra.studies.ablation import ABLATION
    from electra.studies.learning_rate import read_rates
    from electra.studies.paper import STUDIES, find_study
    from electra.studies.run import run_study
    from electra.studies.score import build_scorers
    from electra.studies.study import (
        SCALES,
        check_overrides,
        find_scale,
        select_arms,
        set_budget,
    )

    if name is None:
        for known, build in STUDIES.items():
            typer.echo(f"{known:20}{build(SCALES['tiny']).title}")
        typer.echo(f"{ABLATION:20}Changes to a recipe, one at a time: your own arms")
        return
    chosen = find_study(name, find_scale(scale), arm or [])
    rates = read_rates(learning_rates)
    check_overrides(chosen, settings or [], rates)  # before some arms are left out
    if budget is not None:
        chosen = set_budget(chosen, budget)
    if arms:
        chosen = select_arms(chosen, read_names(arms))
    if data is None or out is None:
        raise UserError("Give the prepared text with --data and an output folder with --out.")
    chosen_seeds = read_seeds(seeds)
    scorers = build_scorers(
        glue=glue,
        tasks=read_names(tasks),
        task=task,
        task_data=task_data,
        blimp=blimp,
        blimp_pairs=blimp_pairs,
        seeds=read_seeds(tuning_seeds, "--tuning-seeds"),
        config=override(FinetuneConfig(), tuning or []),
    )
    warn([warning for scorer in scorers for warning in scorer.warnings])
    code = run_study(
        chosen,
        data=data,
        out=out,
        seeds=chosen_seeds,
        overrides=settings or [],
        scorers=scorers,
        reuse=reuse or [],
        rates=rates,
        command=shlex.join(["electra", *sys.argv[1:]]),
        console=consoles()[1],
    )
    if code == 0:
        typer.echo((out / "table.md").read_text(encoding="utf-8"))
        typer.echo(f"Report: {out / 'page.md'}")
    raise typer.Exit(code)


def _show_paper(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(title="Compute by the paper's rules", title_justify="left", box=None)
    table.add_column("model")
    for column in ("training", "published", "", "inference (128)", "published"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["model"],
            _flops(row["train"]),
            f"{row['train_published']:.1e}",
            f"{row['train'] / row['train_published'] - 1:+.1%}",
            _flops(row["inference"]),
            "" if row["inference_published"] is None else f"{row['inference_published']:.1e}",
        )
    console, _ = consoles()
    console.print(table)
    console.print(
        "ELECTRA-Small: the counter of google-research/electra gives 1.29e18, too.", highlight=False
    )


def _show_recipe(found: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    paper, ours, length = found["paper"], found["hardware"], found["length"]
    phases = ", then ".join(f"{p['batch_size']} rows of {p['seq_length']}" for p in found["phases"])
    title = Text(f"{found['recipe']}, {found['budget']}, {phases} per step")
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("FLOPs")
    table.add_column("paper's rules", justify="right")
    table.add_column("hardware", justify="right")
    table.add_row("training", _flops(paper["train"]), _flops(ours["train"]))
    known = {"times_electra_small": "ELECTRA-Small", "times_bert_base": "BERT-Base"}
    for key, name in known.items():
        times = "-" if paper[key] is None else f"{paper[key]:.3g}"
        table.add_row(f"  x the paper's {name}", times, "")
    table.add_row("training, per token", _flops(paper["per_token"]), _flops(ours["per_token"]))
    uses = {length: "inference", 128: "inference_128"}
    for n, key in uses.items() if length != 128 else [(128, "inference")]:
        table.add_row(f"inference, a row of {n}", _flops(paper[key]), _flops(ours[key]))
    console, _ = consoles()
    console.print(table)
    sizes = ", ".join(f"{name} {n:,}" for name, n in found["parameters"].items())
    steps = (
        ""
        if found["steps"] is None
        else f" {found['steps']:,} steps, {found['tokens']:.3g} tokens."
    )
    for line in (f"Parameters: {sizes}.{steps}", *found["notes"]):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _flops(number: float | None) -> str:
    return "-" if number is None else f"{number:.2e}"
