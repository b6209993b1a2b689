"""The commands after pre-training: finetune, glue, predict, probe."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from electra.cli.console import consoles, lasting, resumable, warn
from electra.cli.inference import Model
from electra.cli.train import Json

if TYPE_CHECKING:
    from rich.console import Console

    from electra.finetune.probe import PhenomenonAccuracy

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings to change, such as `lr=1e-4` or `epochs=5`; --settings lists all.",
        show_default=False,
    ),
]
Seeds = Annotated[
    str,
    typer.Option(
        help="Number of seeds (`5`: seeds 0 to 4), or a list of seeds (`3,7`); a list of one "
        "ends with a comma (`3,`)."
    ),
]
MOST_SEEDS = 1000
"""The largest number that --seeds accepts without a comma."""
NOTHING_LEARNED = (
    "no seed has learned anything: try a lower lr or more epochs. An encoder that is still on its "
    "opening plateau cannot be fine-tuned; `electra evaluate` shows an AUC near 0.5 then."
)
TASKS = (
    "A GLUE task (cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli), squad1, squad2, conll2000, "
    "conll2003; for your own files: classify, regress, pair, choice, tag, qa."
)


def print_settings(wanted: bool) -> None:
    """Print every setting with its default and its help, and exit."""
    if wanted:
        from electra.config import to_yaml
        from electra.finetune.settings import FinetuneConfig

        typer.echo(to_yaml(FinetuneConfig()), nl=False)
        raise typer.Exit


Listed = Annotated[
    bool,
    typer.Option(
        "--settings", callback=print_settings, is_eager=True, help="List all settings and exit."
    ),
]


def read_seeds(text: str, option: str = "--seeds") -> list[int]:
    """Parse --seeds: `5` is 0 to 4, `3,7` is those two."""
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
            f"{option} {text}: give a number up to {MOST_SEEDS}, such as 5, or a list of different "
            "seeds, such as 3,7."
        )
    return list(range(numbers[0])) if alone else numbers


def read_names(text: str) -> list[str]:
    """Split `a, b` into `a` and `b`."""
    return [name.strip() for name in text.split(",") if name.strip()]


@lasting()
def finetune(
    model: Model,
    task: Annotated[str, typer.Argument(metavar="TASK", help=TASKS)],
    settings: Settings = None,
    *,
    data: Annotated[Path, typer.Option(help="The folder of the task, or one file.")],
    out: Annotated[
        Path, typer.Option(help="Output folder for results, predictions and the model.")
    ],
    seeds: Seeds = "5",
    text: Annotated[
        str | None, typer.Option(help="Your own files: the column of the text or question.")
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(
            help="Your own files: the column of the second text or context; for `choice` the "
            "columns of the options, such as `a,b,c`."
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="Your own files: the column of the label or answer; in CoNLL files, the number of "
            "the tag column."
        ),
    ] = None,
    as_json: Json = False,
    listed: Listed = False,
) -> None:
    """Fine-tune a model on a task with several seeds; a GPU trains them at the same time.

    The output folder gets `results.jsonl` with one line per seed, the predictions of each seed, and
    `model`, the best seed on dev. Run the same command again to train missing seeds.

    Example: `electra finetune runs/first classify --data reviews.csv --out tuned --label stars`
    """
    from electra.config import override
    from electra.finetune.glue import summary_line
    from electra.finetune.results import summary
    from electra.finetune.run import finetune as run_finetune
    from electra.finetune.settings import FinetuneConfig
    from electra.tasks.load import load_task

    console, progress = consoles()
    chosen = read_seeds(seeds)
    config = override(FinetuneConfig(), settings or [])
    loaded = load_task(task, data, text=text, pair=pair, label=label)
    warn(loaded.warnings)
    with resumable():
        results = run_finetune(model, loaded, out, chosen, config, progress)
    if as_json:
        for result in results:
            typer.echo(json.dumps(result, ensure_ascii=False))
        return
    row = summary(results)
    console.print(summary_line(row), highlight=False, markup=False, soft_wrap=True)
    typer.echo(f"Model of the best seed: {out / 'model'}")
    if len(row["failed"]) == row["seeds"]:
        warn([NOTHING_LEARNED])


@lasting()
def glue(
    model: Model,
    settings: Settings = None,
    *,
    data: Annotated[Path, typer.Option(help="The folder with the GLUE tasks.")],
    out: Annotated[Path, typer.Option(help="Output folder for all results.")],
    seeds: Seeds = "5",
    tasks: Annotated[
        str,
        typer.Option(help="Run only these tasks, such as `cola,rte`.", show_default="all found"),
    ] = "",
    from_mnli: Annotated[
        bool,
        typer.Option("--from-mnli", help="Start RTE, MRPC and STS-B from the MNLI model."),
    ] = False,
    as_json: Json = False,
    listed: Listed = False,
) -> None:
    """Fine-tune on every GLUE task found and compare with the published scores.

    The output folder gets a folder per task, `results.jsonl`, `table.md`, `glue.png`, and the
    submission for the GLUE server if there are test sets. Run the same command again to
    train what is missing.

    Example: `electra glue runs/first --data glue --out scores --seeds 5`
    """
    from electra.config import override
    from electra.errors import UserError
    from electra.finetune.glue import plot_scores, run_glue, show_table
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
        typer.echo(f"Plot: {plot_scores(rows, out)}", err=True)
    except UserError as missing:  # matplotlib is optional; the results are written without it
        warn([f"no plot: {missing}"])


def predict(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="The --out of `electra finetune`, an installed model, or a name on the Hub.",
        ),
    ],
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="A `.txt` file with one text per line, or a table like the training file.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Output file for the JSON lines.", show_default="standard output"),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="`fp32`, `bf16` (faster on hardware that supports it) or `auto` (`bf16` on CUDA, "
            "else `fp32`)."
        ),
    ] = "auto",
) -> None:
    """Apply a fine-tuned model to new texts and write one JSON object per line.

    Example: `electra predict tuned new-reviews.txt --out answers.jsonl`
    """
    from electra.errors import UserError
    from electra.files import write_atomic
    from electra.finetune.predict import predict as run_predict
    from electra.jsonl import to_json

    if out is not None:
        check_output_file(out, source)
    if precision not in ("auto", "fp32", "bf16"):
        raise UserError(f"--precision {precision}: choose auto, fp32 or bf16.")
    records = run_predict(
        model,
        source,
        precision=precision,  # type: ignore[arg-type]
        warn=lambda message: warn([message]),
    )
    lines = (to_json(record) for record in records)
    if out is None:
        for line in lines:
            typer.echo(line)
        return
    content = "".join(f"{line}\n" for line in lines).encode()
    if out.exists() and not out.is_file():  # write to a pipe or device, do not replace it
        out.write_bytes(content)
    else:
        # Keep a symlink. Path.resolve would raise for circular links.
        write_atomic(Path(os.path.realpath(out)), content)


def check_output_file(out: Path, source: Path) -> None:
    """Refuse an --out that cannot be written, or that is the input."""
    from electra.errors import UserError

    if not out.parent.is_dir():
        raise UserError(f"There is no folder '{out.parent}' for --out: create it first.")
    if out.is_dir():
        raise UserError(f"'{out}' is a folder, and --out must be a file: name one in it.")
    if out.exists() and source.exists() and out.samefile(source):
        raise UserError(
            f"'{out}' is the input, which the predictions would replace: name another --out."
        )


def probe(
    model: Model,
    data: Annotated[Path, typer.Option(help="The folder with the `.jsonl` files of BLiMP.")],
    network: Annotated[
        str, typer.Option(help="`discriminator`, `generator` or `both`.", show_default=True)
    ] = "discriminator",
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="Shards of `electra prepare`: also score by their token frequencies, and by "
            "length alone.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure grammatical knowledge with BLiMP, per phenomenon, without fine-tuning.

    Each example is a minimal pair. The discriminator should see more replaced tokens in the
    ungrammatical sentence; the generator should find it less likely (slower: one pass per token).
    With both, a third score combines them.

    Example: `electra probe runs/first --data blimp`
    """
    from electra.errors import UserError
    from electra.finetune.probe import probe as run_probe
    from electra.finetune.probe import probe_baselines
    from electra.tasks.blimp import load_blimp

    names = ["discriminator", "generator"] if network == "both" else [network]
    if not set(names) <= {"discriminator", "generator"}:
        raise UserError(f"--network {network}: choose discriminator, generator or both.")
    console, progress = consoles()
    pairs = load_blimp(data)
    found = run_probe(model, pairs, names, progress)  # type: ignore[arg-type]
    if baseline is not None:
        found |= probe_baselines(pairs, baseline)
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
    print_probe(found, total, len(pairs), console)


def print_probe(
    found: "Mapping[str, Sequence[PhenomenonAccuracy]]",
    total: Mapping[str, float],
    pairs: int,
    console: "Console",
) -> None:
    """Print the accuracy of each network or baseline per phenomenon."""
    from rich.table import Table
    from rich.text import Text

    table = Table("phenomenon", "pairs", *found)
    for number, p in enumerate(next(iter(found.values()))):
        accuracies = [f"{each[number].accuracy:.1%}" for each in found.values()]
        table.add_row(Text(p.phenomenon), f"{p.pairs:,}", *accuracies)
    table.add_section()
    table.add_row("all", f"{pairs:,}", *(f"{total[name]:.1%}" for name in found))
    console.print(table)
    console.print("Chance level: 50 %.", style="dim")
