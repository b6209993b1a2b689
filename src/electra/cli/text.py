"""The verbs that turn text into shards: tokenizer train, tokenizer inspect, prepare."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from electra.cli.console import consoles, lasting, resumable, warn

tokenizer_app = typer.Typer(
    help="Make a tokenizer for your text, or look at how well one fits it.", no_args_is_help=True
)


class Kind(StrEnum):
    """The kinds of vocabulary."""

    wordpiece = "wordpiece"
    bpe = "bpe"
    unigram = "unigram"


class Layout(StrEnum):
    """How documents become rows."""

    pairs = "pairs"
    packed = "packed"


Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT",
        help="Text files, folders, globs, or hub:NAME for a dataset of the Hugging Face hub "
        "(hub:NAME:CONFIG:SPLIT). Formats by ending: .txt (a blank line ends a document), .jsonl, "
        ".csv, .tsv, .parquet; also packed as .gz, .xz, .bz2, .zst.",
        show_default=False,
    ),
]
TextField = Annotated[
    str,
    typer.Option(
        "--text-field", help="The field or column with the text in JSON lines and tables."
    ),
]


@tokenizer_app.command("train")
@lasting()
def tokenizer_train(
    inputs: Inputs,
    out: Annotated[Path, typer.Option(help="The folder to write the tokenizer to.")],
    vocab_size: Annotated[
        int, typer.Option(help="Tokens in the vocabulary.", min=1, max=10_000_000)
    ] = 30522,
    kind: Annotated[
        Kind,
        typer.Option(
            help="wordpiece: as BERT and ELECTRA. bpe: byte-level, knows every text. "
            "unigram: as SentencePiece; its training does not repeat exactly."
        ),
    ] = Kind.wordpiece,
    cased: Annotated[bool, typer.Option("--cased", help="Keep upper case and accents.")] = False,
    keep_accents: Annotated[
        bool,
        typer.Option(
            "--keep-accents",
            help="Lower case, but ö stays ö: for every language in which accents make words.",
        ),
    ] = False,
    text_field: TextField = "text",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a tokenizer that is there.")
    ] = False,
) -> None:
    """Learn a vocabulary from text.

    The folder that is written loads everywhere: in  electra prepare  and in transformers.

    Example:  electra tokenizer train corpus/ --out tokenizer --keep-accents
    """
    from electra.text.console import inspect_table, show_bytes
    from electra.text.inspect import inspect_tokenizer
    from electra.text.sources import pipes_as_files
    from electra.text.tokenizer import train_tokenizer

    console, notes = consoles()
    with pipes_as_files(inputs) as files:
        with show_bytes(notes, "learning the vocabulary") as progress:
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
            help="A folder with tokenizer.json or vocab.txt, or a tokenizer.json.",
            show_default=False,
        ),
    ],
    inputs: Inputs,
    text_field: TextField = "text",
    megabytes: Annotated[
        float, typer.Option("--megabytes", help="How much of the text to look at.", min=0.001)
    ] = 10.0,
) -> None:
    """Tell how well a tokenizer fits a text, and warn of what it would lose.

    Example:  electra tokenizer inspect tokenizer corpus/part-00.txt.gz
    """
    from electra.text.console import inspect_table
    from electra.text.inspect import inspect_tokenizer
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
            help="A tokenizer's folder: your own, or any with tokenizer.json or vocab.txt."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write the shards to.")],
    length: Annotated[int, typer.Option(help="Tokens in a row, special ones included.")] = 128,
    layout: Annotated[
        Layout,
        typer.Option(
            help="pairs: one document in a row, in two segments, as in the paper. "
            "packed: rows filled with several documents, without padding."
        ),
    ] = Layout.pairs,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes; the result is the same for any number.", show_default="cores"
        ),
    ] = None,
    held_out: Annotated[
        float, typer.Option(help="The share of the documents kept for validation.")
    ] = 0.01,
    seed: Annotated[int, typer.Option(help="Of the row lengths and the held-out documents.")] = 1,
    text_field: TextField = "text",
) -> None:
    """Turn text into token shards, which training reads.

    No text is lost: what does not fit into a row begins the next one. Run the same command again
    to go on after an interruption; finished shards are kept.

    Example:  electra prepare corpus/ --tokenizer tokenizer --out shards --workers 8
    """
    from electra.text.console import prepare_table, show_prepare
    from electra.text.prepare import prepare as run
    from electra.text.prepare import prepare_warnings

    console, notes = consoles()
    with resumable(), show_prepare(notes) as progress:
        summary = run(
            inputs,
            tokenizer=tokenizer,
            out=out,
            length=length,
            layout=layout.value,
            workers=workers,
            held_out=held_out,
            seed=seed,
            text_field=text_field,
            progress=progress,
        )
    console.print(prepare_table(summary))
    warn(prepare_warnings(summary, text_field))
    done = "already prepared, nothing was changed" if summary.already else "prepared"
    typer.echo(f"{out}: {done}")
