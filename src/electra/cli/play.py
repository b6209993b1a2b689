"""The command `play`: a trained model on a local web page."""

from pathlib import Path
from typing import Annotated

import typer


def play(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Runs, checkpoints, model folders, fine-tuned or installed models, Hub names; "
            "by default an installed model.",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            help="A folder with runs, whose curves are shown; by default the one that MODEL is in.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; only loopback is private.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            help="The port to listen on; by default a free one from 7860 on.",
            min=1,
            max=65535,
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda`, `cuda:1` or `mps`.")] = "auto",
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser.")
    ] = False,
) -> None:
    """Play with a model on a local web page: corrupt, detect, guess, compare, score, classify.

    Without a MODEL, an installed one is used. With several, Compare offers all of them and the
    checkpoints of runs; fine-tuned ones are under Classify. The page needs no internet connection.

    Example: `electra play runs/mine`
    """
    from electra.play.server import serve

    serve(models or [], host=host, port=port, runs=runs, device=device, open_browser=open_browser)
