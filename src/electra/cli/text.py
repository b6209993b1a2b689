"""The commands that turn text into shards: `tokenizer train`, `tokenizer inspect`, `prepare`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from electra.cli.console import consoles, lasting, resumable, warn
from electra.errors import UserError
from electra.model_paths import find_tokenizer

if TYPE_CHECKING:
    from electra.text.prepare import Summary

tokenizer_app = typer.Typer(
    help="Train a tokenizer on your text, or check how well one fits it.", no_args_is_help=True
)


class Kind(StrEnum):
    """The kinds of tokenizer."""

    wordpiece = "wordpiece"
    bpe = "bpe"
    unigram = "unigram"


class Executor(StrEnum):
    """Where the tasks of a preparation run."""

    local = "local"
    ray = "ray"
    slurm = "slurm"


class Layout(StrEnum):
    """How documents are laid out as sequences."""

    pairs = "pairs"
    packed = "packed"


Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT",
        help="Text files, folders, globs, pipes, or `hub:NAME` for a dataset of the Hugging Face "
        "Hub (`hub:NAME:CONFIG:SPLIT`). The ending gives the format: `.txt` (documents are "
        "separated by blank lines), `.jsonl`, `.csv`, `.tsv`, `.parquet`, optionally compressed "
        "as `.gz`, `.xz`, `.bz2`, `.zst`. Tar and zip archives of these, Wikipedia dumps "
        "(`…-pages-articles.xml.bz2`) and the output of WikiExtractor are read without unpacking.",
        show_default=False,
    ),
]
TextField = Annotated[
    str,
    typer.Option("--text-field", help="Field or column that contains the text."),
]


@tokenizer_app.command("train")
@lasting()
def tokenizer_train(
    inputs: Inputs,
    out: Annotated[Path, typer.Option(help="Folder to write the tokenizer to.")],
    vocab_size: Annotated[
        int, typer.Option(help="Number of tokens in the vocabulary.", min=1, max=10_000_000)
    ] = 30522,
    kind: Annotated[
        Kind,
        typer.Option(
            help="`wordpiece`: as in BERT and ELECTRA. `bpe`: byte-level, without unknown tokens. "
            "`unigram`: as in SentencePiece; its training is not exactly reproducible."
        ),
    ] = Kind.wordpiece,
    cased: Annotated[bool, typer.Option("--cased", help="Keep case and accents.")] = False,
    keep_accents: Annotated[
        bool,
        typer.Option(
            "--keep-accents",
            help="Lower-case the text but keep accents, for languages in which they distinguish "
            "words.",
        ),
    ] = False,
    text_field: TextField = "text",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing tokenizer.")
    ] = False,
) -> None:
    """Train a tokenizer on text.

    `electra prepare` and `transformers` can load the folder that is written.

    Example: `electra tokenizer train corpus/ --out tokenizer --keep-accents`
    """
    from electra.text.inspect import inspect_tokenizer
    from electra.text.progress import inspect_table, show_bytes
    from electra.text.sources import pipes_as_files
    from electra.text.tokenizer import check_out, train_tokenizer

    check_out(out, overwrite)  # before a pipe is read
    console, notes = consoles()
    with pipes_as_files(inputs) as files:
        with show_bytes(notes, "training the tokenizer") as progress:
            tokenizer = train_tokenizer(
                files,
                out,
                vocab_size=vocab_size,
                kind=kind.value,
                cased=cased,
                keep_accents=keep_accents,
                text_field=text_field,
                overwrite=overwrite,
                progress=progress,
            )
        report = inspect_tokenizer(tokenizer, files, text_field=text_field, limit=2_000_000)
    console.print(inspect_table(report))
    warn(report.warnings)
    typer.echo(f"The tokenizer is in {out}")


@tokenizer_app.command("inspect")
def tokenizer_inspect(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder with a `tokenizer.json` or `vocab.txt`, one of these files, or an "
            "installed model.",
            callback=find_tokenizer,
            show_default=False,
        ),
    ],
    inputs: Inputs,
    text_field: TextField = "text",
    megabytes: Annotated[
        float, typer.Option("--megabytes", help="How much of the text to read.", min=0.001)
    ] = 10.0,
) -> None:
    """Measure how well a tokenizer fits a text, and warn about what it loses.

    Example: `electra tokenizer inspect tokenizer corpus/part-00.txt.gz`
    """
    from electra.text.inspect import inspect_tokenizer
    from electra.text.progress import inspect_table
    from electra.text.tokenizer import load_tokenizer, special_names

    console, _ = consoles()
    report = inspect_tokenizer(
        load_tokenizer(path),
        inputs,
        names=special_names(path),
        text_field=text_field,
        limit=int(megabytes * 1e6),
    )
    console.print(inspect_table(report))
    for before, after in report.examples:
        typer.echo(f"  {before}  becomes  {after}")
    warn(report.warnings)


@lasting()
def prepare(
    inputs: Inputs,
    tokenizer: Annotated[
        Path,
        typer.Option(
            help="Folder with a `tokenizer.json` or `vocab.txt`, or an installed model.",
            callback=find_tokenizer,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the shards to.")],
    length: Annotated[
        str,
        typer.Option(
            "--length",
            "--seq-length",
            help="Sequence length in tokens, special tokens included. Several, such as `128,512`, "
            "give shards of each in a subfolder, for `data.seq_length=128,512@0.9`.",
        ),
    ] = "128",
    layout: Annotated[
        Layout,
        typer.Option(
            help="`pairs`: sequences of one document, in two segments, as in the paper. "
            "`packed`: sequences filled with several documents, almost without padding."
        ),
    ] = Layout.pairs,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Number of worker processes, or on a cluster of tasks that run at once; the "
            "shards do not depend on it.",
            show_default="one per core, on a cluster no limit",
        ),
    ] = None,
    held_out: Annotated[
        float, typer.Option(help="Share of the documents to hold out for validation.")
    ] = 0.01,
    seed: Annotated[
        int, typer.Option(help="Random seed for sequence lengths and held-out documents.")
    ] = 1,
    text_field: TextField = "text",
    tasks: Annotated[
        int,
        typer.Option(
            help="Number of independent tasks that share the files. It decides which text shares a "
            "shard: the same number gives the same shards everywhere."
        ),
    ] = 1,
    executor: Annotated[
        Executor,
        typer.Option(
            help="Where the tasks run. `local`: in processes on this machine. `ray`, `slurm`: with "
            "datatrove on a cluster whose nodes share the folders (extra `cluster`)."
        ),
    ] = Executor.local,
    executor_option: Annotated[
        list[str] | None,
        typer.Option(
            "--executor-option",
            metavar="KEY=VALUE",
            help="Option of datatrove's executor, such as `partition=cpu`, `time=8:00:00` or "
            "`mem_per_cpu_gb=4`; may be given several times.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Tokenize text into shards for pre-training.

    No text is lost: what does not fit into a sequence starts the next one. To resume after an
    interruption, run the same command again; finished shards are kept.

    Example: `electra prepare corpus/ --tokenizer tokenizer --out shards --workers 8`
    """
    from electra.text.prepare import check_options, folders_of_lengths, prepare_warnings
    from electra.text.progress import prepare_table

    console, _ = consoles()
    folders = folders_of_lengths(length, out, inputs)
    for each in folders:  # before hours are spent on another one
        check_options(each, layout.value, workers, held_out, seed, tasks)
    for each, folder in folders.items():
        options: dict[str, Any] = {
            "tokenizer": tokenizer,
            "out": folder,
            "length": each,
            "layout": layout.value,
            "workers": workers,
            "held_out": held_out,
            "seed": seed,
            "text_field": text_field,
            "tasks": tasks,
        }
        summary = run_prepare(inputs, executor, executor_option or [], options)
        if summary is None:
            typer.echo(f"{folder}: submitted; it is prepared when it has an index.json")
            continue
        console.print(prepare_table(summary))
        warn(prepare_warnings(summary, text_field))
        status = "already prepared, nothing was changed" if summary.already else "prepared"
        typer.echo(f"{folder}: {status}")


def run_prepare(
    inputs: list[str], executor: Executor, executor_options: list[str], options: dict[str, Any]
) -> "Summary | None":
    """Prepare one folder here or on a cluster; None if it is submitted and not done yet."""
    from electra.text.cluster import Cluster, parse_options, prepare_on_cluster
    from electra.text.prepare import prepare
    from electra.text.progress import show_prepare

    if executor is not Executor.local:
        cluster: Cluster = "ray" if executor is Executor.ray else "slurm"
        given = parse_options(executor_options)
        with resumable():
            return prepare_on_cluster(inputs, cluster=cluster, options=given, **options)
    if executor_options:
        raise UserError("--executor-option is for --executor ray or slurm: leave it out.")
    with resumable(), show_prepare(consoles()[1]) as progress:
        return prepare(inputs, progress=progress, **options)
