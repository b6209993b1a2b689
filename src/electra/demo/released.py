"""The second act of the demo: the released model beside the toy."""

import random
import re
import statistics
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from electra.api import Model, load
from electra.demo.speeches import Sentence, Speech, sample_sentences
from electra.finetune.run import finetune
from electra.finetune.settings import FinetuneConfig
from electra.hub.inference import DetectedToken
from electra.tasks import examples

RELEASED_MODEL = "electra-small-en"
FINETUNE_RELEASED = FinetuneConfig(epochs=2, batch_size=16, max_length=64, device="cpu")

NUM_EXCHANGED = 200
# Chosen after seeing the answers; exchange_words makes sentences that nobody chose.
EXAMPLES = (
    ("The keys to the cabinet is on the table.", "is"),
    ("The old captain painted the kitchen river.", "river"),
    ("He drank a cup of hot concrete before breakfast.", "concrete"),
    ("Our farmers planted wheat and corn in the piano.", "piano"),
    ("The president have asked Congress for more money.", "have"),
    ("The ship sailed across the carpet to America.", "carpet"),
    ("The people of the island speaks two languages.", "speaks"),
)
"""Sentences with the one word that is wrong in them."""

Span = tuple[int, int]
"""Where a word begins and ends in a text, in characters."""


def show_released(
    console: Console,
    out: Path,
    held_out: list[Speech],
    task: examples.Task,
    toy_accuracy: list[float],
) -> dict[str, dict[str, float]]:
    """Compare both models on sentences with a wrong word and on the word order task."""
    toy, released = load(out / "run", device="cpu"), load(RELEASED_MODEL, device="cpu")
    models = {"toy": toy, RELEASED_MODEL: released}
    console.print(
        "13.5 M parameters in 12 layers, against the toy's 0.4 M in one; trained on other text, on "
        "a data-centre GPU (its model card says how). In a sentence with one wrong word, which "
        "word does each of them suspect most?\n",
        highlight=False,
    )
    console.print(suspects_table(models))
    exchanged = exchange_words(sample_sentences(held_out, 2 * NUM_EXCHANGED, seed=5)[::2], seed=0)
    console.print(
        f"\nThese sentences are chosen. Not chosen: {len(exchanged)} held-out sentences, in which "
        "a random word is replaced by one of another sentence; and the word order task, with one "
        "seed of fine-tuning.",
        highlight=False,
    )
    found = {name: share_found(model, exchanged) for name, model in models.items()}
    (result,) = finetune(
        *(RELEASED_MODEL, task, out / "tuned" / "released", range(1), FINETUNE_RELEASED, console),
        warn_truncation=False,
    )
    ordered = {"toy": statistics.median(toy_accuracy), RELEASED_MODEL: float(result["accuracy"])}
    guessing = statistics.mean(1 / len(find_words(text)) for text, _ in exchanged)
    table = Table("", box=None)
    for head in (*models, "guessing"):
        table.add_column(head, justify="right")
    table.add_row("replaced word found", *map(percent, (*found.values(), guessing)))
    table.add_row("word order task, fine-tuned", *map(percent, (*ordered.values(), 0.5)))
    console.print()
    console.print(table)
    return {"replaced_word_found": found, "order_accuracy": ordered}


def suspects_table(models: dict[str, Model]) -> Table:
    """The word of each example that each model suspects most."""
    table = Table("", *models, box=None)
    texts = [text for text, _ in EXAMPLES]
    detected = [model.detect(texts) for model in models.values()]
    for (text, wrong), *answers in zip(EXAMPLES, *detected, strict=True):
        shown = Text(text)
        shown.highlight_words([f" {wrong}"], "bold yellow")
        words = [text[slice(*suspect(text, tokens))] for tokens in answers]
        cells = [
            Text(f"✓ {word}", style="green") if word == wrong else Text(f"  {word}", style="dim")
            for word in words
        ]
        table.add_row(shown, *cells)
    return table


def exchange_words(sentences: list[Sentence], seed: int) -> list[tuple[str, Span]]:
    """Replace one word of each sentence by a word of the next; returns where it stands."""
    rng = random.Random(seed)
    exchanged = []
    for sentence, other in zip(sentences, [*sentences[1:], sentences[0]], strict=True):
        begin, end = rng.choice(find_words(sentence.text))
        old = sentence.text[begin:end]
        words = [other.text[slice(*span)] for span in find_words(other.text)]
        new = rng.choice([word for word in words if word != old])
        text = sentence.text[:begin] + new + sentence.text[end:]
        exchanged.append((text, (begin, begin + len(new))))
    return exchanged


def share_found(model: Model, exchanged: list[tuple[str, Span]]) -> float:
    """The share of the texts in which the model suspects the right word most."""
    detected = model.detect([text for text, _ in exchanged])
    hits = (
        suspect(text, tokens) == span
        for (text, span), tokens in zip(exchanged, detected, strict=True)
    )
    return statistics.mean(hits)


def suspect(text: str, tokens: list[DetectedToken]) -> Span:
    """The word with the token that looks most replaced."""
    most = max(tokens, key=lambda token: token.replaced)
    words = (span for span in find_words(text) if span[0] <= most.start < span[1])
    return next(words, (most.start, most.end))


def find_words(text: str) -> list[Span]:
    return [match.span() for match in re.finditer(r"\w+", text)]


def percent(share: float) -> str:
    return f"{share:.1%}"
