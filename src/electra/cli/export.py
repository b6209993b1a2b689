"""The command that writes a model for other libraries: export."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run, a checkpoint, a model folder, the --out of `electra finetune`, or a name "
            "on the Hub.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write, new or empty.")],
    form: Annotated[
        str,
        typer.Option("--format", help="`transformers`, `onnx` or `sentence-transformers`."),
    ] = "transformers",
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="ONNX: also quantise to int8, and measure what that costs on --data."
        ),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="ONNX with --int8: a labelled file of the task, or for a pre-trained model a file "
            "with one text per line.",
            show_default=False,
        ),
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file with what the model card should say, as for `electra release`: "
            "language, licence, data, hardware, scores.",
            show_default=False,
        ),
    ] = None,
    push_to_hub: Annotated[
        str | None,
        typer.Option(
            "--push-to-hub",
            metavar="NAME",
            help="Also upload the folder to the Hugging Face Hub, as `user/model`.",
            show_default=False,
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="With --push-to-hub: create a private repository.")
    ] = False,
    checkpoints: Annotated[
        bool,
        typer.Option(
            "--checkpoints",
            help="With --push-to-hub: also upload each checkpoint of the run, as a revision.",
        ),
    ] = False,
) -> None:
    """Export a model for transformers, onnxruntime or sentence-transformers.

    The folder gets a model card, `README.md`, with what the run knows and what --card says.

    An ONNX graph takes any batch size and length; it is written only if onnxruntime gives the
    outputs of torch.

    Example:  electra export tuned --out tuned-onnx --format onnx --int8 --data reviews.csv
    """
    from electra.errors import UserError
    from electra.export.run import Push, export_model

    if push_to_hub is None and (private or checkpoints):
        raise UserError("--private and --checkpoints are for --push-to-hub: leave them out.")
    push = Push(name=push_to_hub, private=private, checkpoints=checkpoints) if push_to_hub else None
    export_model(model, out, form, int8=int8, data=data, push=push, card=card, tell=typer.echo)
