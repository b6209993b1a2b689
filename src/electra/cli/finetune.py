"""The verbs after pre-training: finetune, glue, predict, probe."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from electra.cli.console import consoles, lasting, resumable, warn
from electra.cli.inference import Model
from electra.cli.train import Json

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings to change, as  lr=1e-4  or  epochs=5 ; --settings lists them.",
        show_default=False,
    ),
]
Seeds = Annotated[
    str,
    typer.Option(help="How many seeds, or which: 5 means 0 to 4; 3,7 those two; 3, that one."),
]
MOST_SEEDS = 1000
"""That a number alone may ask for."""
TASKS = (
    "cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli; squad1, squad2; conll2000, conll2003; or "
    "for your own files: classify, regress, pair, choice, tag, qa."
)


def print_settings(wanted: bool) -> None:
    """Print every setting with its default and what it means."""
    if wanted:
        from electra.config import to_yaml
        from electra.finetune.settings import FinetuneConfig

        typer.echo(to_yaml(FinetuneConfig()), nl=False)
        raise typer.Exit


Listed = Annotated[
    bool,
    typer.Option(
        "--settings", callback=print_settings, is_eager=True, help="List the settings and leave."
    ),
]


def read_seeds(text: str, option: str = "--seeds") -> list[int]:
    """5 -> 0 to 4; 3,7 -> those."""
    from electra.errors import UserError

    try:
        numbers = [int(part) for part in text.removesuffix(",").split(",")]
    except ValueError:
        numbers = [-1]
    alone = "," not in text
    lowest, highest = (1, MOST_SEEDS) if alone else (0, 2**31 - 1)
    different = len(set(numbers)) == len(numbers)
    if not different or min(numbers) < lowest or max(numbers) > highest:
        raise UserError(
            f"{option} {text}: write a number up to {MOST_SEEDS}, as 5, or several different ones, "
            "as 3,7."
        )
    return list(range(numbers[0])) if alone else numbers


def read_names(text: str) -> list[str]:
    """`a, b` -> a and b."""
    return [name.strip() for name in text.split(",") if name.strip()]


@lasting()
def finetune(
    model: Model,
    task: Annotated[str, typer.Argument(help=TASKS)],
    settings: Settings = None,
    *,
    data: Annotated[Path, typer.Option(help="The task's folder, or one file.")],
    out: Annotated[Path, typer.Option(help="The folder for results, predictions and the model.")],
    seeds: Seeds = "5",
    text: Annotated[
        str | None, typer.Option(help="Your own file: the column with the text, or the question.")
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(
            help="Your own file: the column with the second text, or the context; for choice those "
            "of the options, as a,b,c."
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="Your own file: the column with the label, or the answer; in CoNLL files the "
            "number of the column with the tags."
        ),
    ] = None,
    as_json: Json = False,
    listed: Listed = False,
) -> None:
    """Fine-tune a model on a task with several seeds; on a GPU they are trained at once.

    OUT gets results.jsonl with a line per seed, the predictions of each, and `model`, the best seed
    on dev. The same command again goes on with the seeds that are missing.

    Example:  electra finetune runs/first classify --data reviews.csv --out tuned --label stars
    """
    from electra.config import override
    from electra.finetune.glue import line
    from electra.finetune.results import summary
    from electra.finetune.run import finetune as tune
    from electra.finetune.settings import FinetuneConfig
    from electra.tasks.load import load_task

    console, progress = consoles()
    chosen = read_seeds(seeds)
    config = override(FinetuneConfig(), settings or [])
    loaded = load_task(task, data, text=text, pair=pair, label=label)
    warn(loaded.warnings)
    with resumable():
        results = tune(model, loaded, out, chosen, config, progress)
    if as_json:
        for result in results:
            typer.echo(json.dumps(result, ensure_ascii=False))
        return
    console.print(line(summary(results)), highlight=False, markup=False, soft_wrap=True)
    typer.echo(f"The best seed's model: {out / 'model'}")


@lasting()
def glue(
    model: Model,
    settings: Settings = None,
    *,
    data: Annotated[Path, typer.Option(help="The folder with GLUE's tasks.")],
    out: Annotated[Path, typer.Option(help="The folder for all results.")],
    seeds: Seeds = "5",
    tasks: Annotated[
        str, typer.Option(help="Only these, separated by commas.", show_default="all there are")
    ] = "",
    from_mnli: Annotated[
        bool,
        typer.Option("--from-mnli", help="Start RTE, MRPC and STS-B from the model of MNLI."),
    ] = False,
    as_json: Json = False,
    listed: Listed = False,
) -> None:
    """Fine-tune on every task of GLUE and compare with the paper.

    OUT gets a folder per task, results.jsonl, table.md, glue.png, and the files for GLUE's server
    where there are test sets. The same command again goes on with what is missing.

    Example:  electra glue runs/first --data glue --out scores --seeds 5
    """
    from electra.config import override
    from electra.errors import UserError
    from electra.finetune.glue import draw, run_glue, show_table
    from electra.finetune.settings import FinetuneConfig

    console, progress = consoles()
    config = override(FinetuneConfig(), settings or [])
    with resumable():
        rows = run_glue(
            model,
            data,
            out,
            read_seeds(seeds),
            config,
            progress,
            only=read_names(tasks),
            from_mnli=from_mnli,
        )
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        show_table(rows, console)
    try:
        typer.echo(f"Figure: {draw(rows, out)}", err=True)
    except UserError as missing:  # matplotlib is an extra; the numbers are there without it
        warn([f"no figure: {missing}"])


def predict(
    model: Annotated[
        str, typer.Argument(help="The folder OUT of  electra finetune , or a Hub name.")
    ],
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT", help="A .txt with a text per line, or a table as in training."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file for the JSON lines.", show_default="standard output"),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="fp32, or bf16, which is faster on processors that have it; auto is bf16 on CUDA."
        ),
    ] = "auto",
) -> None:
    """Answer for new texts, one JSON object per line.

    Example:  electra predict tuned new-reviews.txt --out answers.jsonl
    """
    from electra.errors import UserError
    from electra.files import write_atomic
    from electra.finetune.predict import predict as ask
    from electra.jsonl import to_json

    if out is not None and not out.parent.is_dir():
        raise UserError(f"There is no folder '{out.parent}' for --out: make it first.")
    if out is not None and out.is_dir():
        raise UserError(f"'{out}' is a folder, and --out must be a file: name one in it.")
    if out is not None and out.exists() and source.exists() and out.samefile(source):
        raise UserError(
            f"'{out}' is the input, which the answers would replace: name another --out."
        )
    if precision not in ("auto", "fp32", "bf16"):
        raise UserError(f"--precision {precision}: write auto, fp32 or bf16.")
    found = ask(model, source, precision=precision)  # type: ignore[arg-type]
    lines = (to_json(record) for record in found)
    if out is None:
        for line in lines:
            typer.echo(line)
        return
    content = "".join(f"{line}\n" for line in lines).encode()
    if out.exists() and not out.is_file():  # a pipe or a device is written to, not replaced
        out.write_bytes(content)
    else:
        # A link stays a link. Not Path.resolve, which raises where links go in a circle.
        write_atomic(Path(os.path.realpath(out)), content)


def probe(
    model: Model,
    data: Annotated[Path, typer.Option(help="The folder with BLiMP's JSON lines.")],
    network: Annotated[
        str, typer.Option(help="discriminator, generator, or both.", show_default=True)
    ] = "discriminator",
    as_json: Json = False,
) -> None:
    """Measure what a model knows of grammar, without fine-tuning: BLiMP, per phenomenon.

    Of two sentences that differ in little, the discriminator should find the wrong one more
    'replaced', and the generator less likely (which takes longer: it hides each token in turn).

    Example:  electra probe runs/first --data blimp
    """
    from rich.table import Table
    from rich.text import Text

    from electra.errors import UserError
    from electra.finetune.probe import probe as ask
    from electra.tasks.blimp import load_blimp

    names = ("discriminator", "generator") if network == "both" else (network,)
    if not set(names) <= {"discriminator", "generator"}:
        raise UserError(f"--network {network}: write discriminator, generator or both.")
    console, progress = consoles()
    pairs = load_blimp(data)
    found = {name: ask(model, pairs, name, progress) for name in names}  # type: ignore[arg-type]
    total = {
        name: sum(p.accuracy * p.pairs for p in each) / len(pairs) for name, each in found.items()
    }
    if as_json:
        for name, each in found.items():
            for p in each:
                typer.echo(json.dumps({"network": name, **asdict(p)}))
            whole = {"phenomenon": "all", "accuracy": total[name], "pairs": len(pairs)}
            typer.echo(json.dumps({"network": name, **whole}))
        return
    table = Table("phenomenon", "pairs", *names)
    for number, p in enumerate(found[names[0]]):
        shares = [f"{found[name][number].accuracy:.1%}" for name in names]
        table.add_row(Text(p.phenomenon), f"{p.pairs:,}", *shares)
    table.add_section()
    table.add_row("all", f"{len(pairs):,}", *(f"{total[name]:.1%}" for name in names))
    console.print(table)
    console.print("Guessing gives 50 %.", style="dim")
