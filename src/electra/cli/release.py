"""The command that makes a pip package of a model: release."""

import shlex
from pathlib import Path
from typing import Annotated

import typer


def release(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A run, a checkpoint, or a folder with a pre-trained model."
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the model, such as `electra-small-en`.")],
    out: Annotated[Path, typer.Option(help="The package's folder, new or empty.")],
    card: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file with what the model card should say: data, licence, hardware, "
            "scores. What it leaves out, the card leaves out.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[str, typer.Option(help="Version of the package.")] = "1.0.0",
) -> None:
    """Make a pip package of a pre-trained model, with its model card.

    The package has the networks in fp16 as folders of transformers, and the SHA-256 of each file,
    which is checked whenever the model is loaded. Once it is installed, every command takes the
    name as a model.

    Example: `electra release runs/first --name electra-first-en --out weights/electra-first-en`
    """
    from electra.release.package import release as write_release

    size = write_release(model, out, name=name, version=version, card=card)
    typer.echo(f"{out}: {size / 1e6:.1f} MB. Read its README.md, then run")
    typer.echo(f"  pip install {shlex.quote(path_argument(out))}")


def path_argument(path: Path) -> str:
    """A path that pip does not take for the name of a package."""
    return str(path) if len(path.parts) > 1 else f"./{path}"
