"""The command that imports models from other projects."""

from pathlib import Path
from typing import Annotated

import typer


def import_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="A TensorFlow checkpoint (its prefix or folder), a transformers folder, a name on "
            "the Hub, or a run; two of them if each has one of the networks.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; it must not exist yet.")],
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
) -> None:
    """Import a pre-trained ELECTRA: a TensorFlow checkpoint, a transformers folder, a Hub model.

    TensorFlow is not needed for checkpoints of google-research/electra. The networks are written
    to `discriminator` and `generator` in the folder, which every command then takes as a model.

    Example: `electra import electra_small --out models/small`
    """
    from electra.hub.import_model import TokenizerOptions, import_model

    options = TokenizerOptions(vocab=vocab, cased=cased, keep_accents=keep_accents)
    for name, network in import_model(sources, out, options=options, heads=heads or 0).items():
        config = network.encoder.config
        parameters = sum(p.numel() for p in network.parameters())
        typer.echo(
            f"{out / name}: layers {config.layers}, hidden {config.hidden}, "
            f"heads {config.head_count}, vocabulary {config.vocab_size:,}, "
            f"{parameters / 1e6:.1f} million parameters"
        )
