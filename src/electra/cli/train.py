"""The commands around a run: `recipes`, `pretrain`, `evaluate`, `report`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from electra.cli.console import consoles, lasting, warn

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings to change, such as `optim.lr=1e-3` or `model.layers=8`.",
        show_default=False,
    ),
]


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A recipe, or a YAML file.")
    ] = None,
    settings: Settings = None,
) -> None:
    """List the recipes, or print one recipe with all its settings and their help.

    Example: `electra recipes paper.small > mine.yaml`
    """
    from electra.recipes import RECIPES, recipe

    if name is None:
        for known, entry in RECIPES.items():
            typer.echo(f"{known:14}{entry.summary}")
        return
    from electra.config import override, to_yaml

    typer.echo(to_yaml(override(recipe(name), settings or [])), nl=False)


@lasting()
def pretrain(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe (see `electra recipes`) or a YAML file; not needed with --resume or "
            "--init-from.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
    *,
    out: Annotated[Path, typer.Option(help="The run folder.")],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DATA",
            help="The folder that `electra prepare` wrote, or an address in an object store, such "
            "as `s3://bucket/shards`.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Length of the run: 25min, 2h, 10000steps, 1e9tokens or 1e16flops. The "
            "learning rate schedule adapts to it.",
            show_default="the recipe's",
        ),
    ] = None,
    init_from: Annotated[
        str | None,
        typer.Option(
            "--init-from",
            metavar="MODEL",
            help="Continue from the weights of a trained model: a run, a checkpoint, what `electra "
            "import` wrote, a transformers folder or a Hub name. Sizes and tokenizer must be the "
            "model's; without RECIPE they are taken from it.",
            show_default=False,
        ),
    ] = None,
    score_on: Annotated[
        Path | None,
        typer.Option(
            "--score-on",
            metavar="DATA",
            help="Your own task, a file or folder as for `electra finetune`. Each checkpoint is "
            "fine-tuned and scored on it; the best one is kept. The run's clock stands still "
            "during scoring.",
            show_default=False,
        ),
    ] = None,
    score_task: Annotated[
        str | None,
        typer.Option(
            "--score-task",
            metavar="TASK",
            help="The task of --score-on, such as `classify`; columns, seeds and more are "
            "settings, such as `score_on.label=stars`.",
            show_default="from the columns of the file",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run in --out; if there is none, start it."),
    ] = False,
) -> None:
    """Pre-train an encoder by replaced token detection or another `objective.kind`.

    The run folder gets checkpoints with everything needed to resume. Each checkpoint also contains
    the networks (`discriminator` and `generator`) as folders that transformers loads. Ctrl-C,
    SIGTERM or a closed terminal saves a checkpoint and stops; the same command with --resume
    continues.

    Several GPUs train one run under torchrun:
    `torchrun --standalone --nproc-per-node=8 -m electra pretrain ...`

    Example: `electra pretrain fast.small --data shards --out runs/first --budget 25min`

    Example: `electra pretrain --init-from runs/first --data mine --out runs/mine --budget 20min`

    Example: `electra pretrain toy --data shards --out runs/toy --score-on reviews.csv`
    """
    from electra.train.distributed import open_ranks

    with open_ranks() as ranks:
        with ranks.together():
            options = {
                "train.budget": budget,
                "score_on.data": None if score_on is None else str(score_on),
                "score_on.task": score_task,
            }
            run = _start_or_resume(name, settings, out, data, options, init_from, resume)
        code = run(ranks=ranks)
    raise typer.Exit(code)


def _start_or_resume(
    name: str | None,
    settings: list[str] | None,
    out: Path,
    data: str | None,
    options: dict[str, str | None],
    init_from: str | None,
    resume: bool,
) -> Callable[..., int]:
    """Return the run that the arguments of `pretrain` ask for, as a function of its ranks.

    `options` are settings that have an option of their own.
    """
    from electra.config import override
    from electra.errors import UserError
    from electra.finetune.score_checkpoints import make_scorer
    from electra.recipes import recipe
    from electra.recipes.continued import check_origin, continued, settings_given
    from electra.train.checkpoint import checkpoints
    from electra.train.pretrain import resume as resume_run
    from electra.train.pretrain import start

    console, _ = consoles()
    if name is not None and "=" in name:
        if not resume and init_from is None:
            raise UserError(f"'{name}' is a setting, not a recipe: name a recipe first.")
        settings = [name, *(settings or [])]
        name = None
    named = [f"{key}={value}" for key, value in options.items() if value is not None]
    changes = [*(settings or []), *named]
    scorer = partial(make_scorer, warn=warn)
    if resume and ((out / "config.yaml").is_file() or checkpoints(out)):
        base = recipe(name) if name else None
        check_origin(out, init_from)
        return partial(
            resume_run, out, console, data, base=base, changes=changes, make_scorer=scorer
        )
    if name is None and init_from is None:
        if resume:
            raise UserError(
                f"{out} holds no run: check --out, or name a recipe to start one there."
            )
        raise UserError("Name a recipe: 'electra recipes' lists them.")
    if data is None:
        raise UserError("Name the prepared text with --data; 'electra prepare' writes it.")
    changes.append(f"data.folder={data}")
    given = settings_given(name, changes)
    if init_from is None:
        assert name is not None
        base = recipe(name)
    else:
        base, more = continued(name, init_from, data, options["train.budget"], given=given)
        given |= more
    config = override(base, changes)
    if config.score_on.task and not config.score_on.data:
        raise UserError("--score-task is the task of --score-on: name its file with --score-on.")
    return partial(start, config, out, console, given, scorer)


def evaluate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, or one of its checkpoints.")
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="DATA",
            help="A folder that `electra prepare` wrote, or its address.",
        ),
    ],
    rows: Annotated[int, typer.Option(help="Maximum number of held-out rows.", min=1)] = 4096,
    as_json: Json = False,
) -> None:
    """Measure a run or a checkpoint on held-out text.

    Example: `electra evaluate runs/first --data shards`
    """
    from rich.table import Table
    from rich.text import Text

    from electra.jsonl import to_json
    from electra.train.evaluate import evaluate as measure
    from electra.train.progress_view import format_metric, metrics_present

    checkpoint, metrics = measure(run, data, rows)
    if as_json:
        typer.echo(to_json({"checkpoint": str(checkpoint), **metrics}))
        return
    title = Text(f"{checkpoint}, held-out text")
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("")
    table.add_column("", justify="right")
    for key, label in metrics_present(metrics):
        table.add_row(label, format_metric(key, metrics[key]))
    consoles()[0].print(table)


@lasting()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.")],
    out: Annotated[
        Path | None, typer.Option(help="Output folder; the first run folder by default.")
    ] = None,
) -> None:
    """Write `report.html`: a verdict, curves, sample sentences, hardware, in one file.

    Several runs share one page. For a single run the curves are also drawn as `report.png`.

    Example: `electra report runs/first runs/second --out comparison`
    """
    from electra.train.report import write_report

    for path in write_report(runs, out):
        typer.echo(str(path))
