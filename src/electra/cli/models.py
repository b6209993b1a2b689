"""The command that imports models from other projects."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from electra.cli.console import consoles
from electra.cli.text import TextField

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from electra.text.extend_vocabulary import ExtendedTokenizer

NUM_EXAMPLES = 3


def import_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="A TensorFlow checkpoint (its prefix or folder), a transformers folder, a name on "
            "the Hub, or a run; two of them if each has one of the networks.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write, new or empty.")],
    vocab: Annotated[
        Path | None,
        typer.Option(
            help="TensorFlow: the vocabulary, a token per line.",
            show_default="vocab.txt beside the checkpoint",
        ),
    ] = None,
    cased: Annotated[
        bool, typer.Option("--cased", help="TensorFlow: the tokenizer keeps upper case.")
    ] = False,
    keep_accents: Annotated[
        bool, typer.Option("--keep-accents", help="TensorFlow: the tokenizer keeps accents.")
    ] = False,
    heads: Annotated[
        int | None,
        typer.Option(
            help="TensorFlow: the discriminator's attention heads, which the weights do not show.",
            min=1,
            show_default="one per 64 of the hidden size",
        ),
    ] = None,
    extend_vocabulary: Annotated[
        int | None,
        typer.Option(
            "--extend-vocabulary",
            metavar="N",
            help="Add N pieces to the vocabulary, learned from --text. The embedding of a new "
            "piece starts as the mean of those of its old pieces.",
            min=1,
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            "--text",
            metavar="INPUT",
            help="With --extend-vocabulary: the new text, in any form that `electra prepare` "
            "reads; may be repeated.",
            show_default=False,
        ),
    ] = None,
    text_field: TextField = "text",
) -> None:
    """Import a pre-trained ELECTRA: a TensorFlow checkpoint, a transformers folder, a Hub model.

    TensorFlow is not needed for checkpoints of google-research/electra. The networks are written
    to `discriminator` and `generator` in the folder, which every command then takes as a model.

    Example: `electra import electra_small --out models/small`

    Example: `electra import models/small --out models/med --extend-vocabulary 2000 --text med.txt`
    """
    from electra.errors import UserError
    from electra.hub.import_model import TokenizerOptions, import_model

    if bool(extend_vocabulary) != bool(text):
        raise UserError("--extend-vocabulary and --text go together: give both or neither.")
    options = TokenizerOptions(vocab=vocab, cased=cased, keep_accents=keep_accents)
    extend = None
    if extend_vocabulary and text:
        extend = partial(extend_and_report, inputs=text, count=extend_vocabulary, field=text_field)
    networks = import_model(sources, out, options=options, heads=heads or 0, extend=extend)
    for name, network in networks.items():
        config = network.encoder.config
        parameters = sum(p.numel() for p in network.parameters())
        typer.echo(
            f"{out / name}: layers {config.layers}, hidden {config.hidden}, "
            f"heads {config.head_count}, vocabulary {config.vocab_size:,}, "
            f"{parameters / 1e6:.1f} million parameters"
        )


def extend_and_report(
    tokenizer: "Tokenizer", inputs: list[str], count: int, field: str
) -> "ExtendedTokenizer":
    """Learn new pieces from text, and print how many pieces a word has before and after."""
    from electra.text.extend_vocabulary import extend_tokenizer
    from electra.text.inspect import inspect_tokenizer
    from electra.text.progress import show_bytes
    from electra.text.sources import pipes_as_files

    with pipes_as_files(inputs) as files:
        with show_bytes(consoles()[1], "learning new pieces") as progress:
            extended = extend_tokenizer(
                tokenizer, files, count, text_field=field, progress=progress
            )
        before, after = (
            inspect_tokenizer(t, files, text_field=field) for t in (tokenizer, extended.tokenizer)
        )
    few = f" (no others occur twice, so not {count:,})" if len(extended.pieces) < count else ""
    typer.echo(f"new pieces: {len(extended.pieces):,}{few}")
    for piece, ids in list(extended.pieces.items())[:NUM_EXAMPLES]:
        typer.echo(f"  {piece} = {' '.join(str(tokenizer.id_to_token(i)) for i in ids)}")
    typer.echo(
        f"pieces per word: {before.tokens_per_word:.3f} before, {after.tokens_per_word:.3f} after"
    )
    unknown = before.unknown_rate * before.tokens_per_word  # new pieces do not change it
    typer.echo(f"unknown pieces per word: {unknown:.4f}")
    return extended
