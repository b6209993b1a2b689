"""`electra demo`: train a tokenizer and a small model, evaluate it, fine-tune it, and compare it
with the released one."""

import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from electra.config import override
from electra.demo.released import RELEASED_MODEL, show_released
from electra.demo.speeches import (
    Sentence,
    Speech,
    read_speeches,
    sample_sentences,
    split_speeches,
    write_text,
)
from electra.errors import UserError
from electra.finetune.run import finetune
from electra.finetune.settings import FinetuneConfig
from electra.hub.folders import export
from electra.hub.highlight import highlight
from electra.model_packages import installed_models
from electra.models.electra import build_pair
from electra.recipes import recipe
from electra.tasks import examples
from electra.text.prepare import prepare
from electra.text.progress import show_bytes, show_prepare
from electra.text.tokenizer import (
    load_tokenizer,
    load_vocabulary,
    save_tokenizer,
    train_tokenizer,
)
from electra.train import checkpoint
from electra.train.evaluate import restore_run
from electra.train.pretrain import start
from electra.train.report import write_report
from electra.train.run_config import read_run_config

RESULTS = "demo.json"
VOCAB_SIZE, SEQ_LENGTH, NUM_SEEDS = 2048, 64, 3
TRAIN_EXAMPLES, DEV_EXAMPLES = 1000, 1000
FINETUNE = FinetuneConfig(
    lr=3e-4,
    layer_decay=1.0,
    epochs=8,
    batch_size=16,
    max_length=SEQ_LENGTH,
    pool="max",  # one layer is too few to summarize a sentence in [CLS]
    device="cpu",
)

RELEASED_STEPS = f"""\
The released model on your labelled texts:

  electra finetune {RELEASED_MODEL} classify --data my-labels.csv --out tuned
  electra predict tuned my-new-texts.txt

"""
PRETRAIN_STEPS = """\
A model of your own text:

  electra tokenizer train my-text.txt --out tokenizer --vocab-size 30522
  electra prepare my-text.txt --tokenizer tokenizer --out shards --length 128
  electra pretrain fast.small --data shards --out runs/mine --budget 1h
  electra evaluate runs/mine --data shards
  electra report runs/mine
  electra detect runs/mine "a sentence with one parliament word"
  electra fill runs/mine "a sentence with one [MASK] word"
  electra finetune runs/mine classify --data my-labels.csv --out tuned-mine
"""


def run_demo(out: Path, budget: str | None, console: Console) -> None:
    """Run all steps of the demo in the folder `out`, replacing an earlier demo."""
    started = time.monotonic()
    changes = [f"data.folder={out / 'shards'}", "train.device=cpu"]
    if budget is not None:
        changes.append(f"train.budget={budget}")
    config = override(recipe("toy"), changes)
    speeches, held_out = split_speeches(read_speeches())
    clear_folder(out)
    prepare_data(console, speeches, out)
    print_heading(console, 3, "Pre-training: a generator and a discriminator, on the CPU")
    code = start(config, out / "run", console)
    if code:
        raise SystemExit(code)
    print_heading(console, 4, "Evaluation on held-out text")
    metrics = checkpoint.read_state(checkpoint.checkpoints(out / "run")[-1]).held_out
    print_metrics(console, metrics)
    sentences = sample_sentences(held_out, 6, seed=4)[::2]
    print_detections(console, out / "run", sentences)
    picture, page = write_report([out / "run"], out)
    console.print(f"Curves: {picture}   Page: {page}", soft_wrap=True, markup=False)
    print_heading(console, 5, "Fine-tuning: are the words of a sentence in order?")
    task = word_order_task(console, speeches, held_out)
    scores = compare_finetuning(console, out / "run", task)
    result: dict[str, Any] = {"held_out": metrics, "order_accuracy": scores}
    if RELEASED_MODEL in installed_models():
        print_heading(console, 6, f"The released model beside the toy: {RELEASED_MODEL}")
        result["released"] = show_released(console, out, held_out, task, scores["pre-trained"])
    seconds = time.monotonic() - started
    result["seconds"] = round(seconds, 1)
    (out / RESULTS).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    took = f"\nThe demo took {seconds / 60:.1f} minutes; everything is in {out}/\n"
    console.print(took, markup=False)
    if shutil.which("electra") is None:  # the virtual environment is not activated
        activate = Path(sys.prefix) / "bin" / "activate"
        console.print(
            f"First, once in each shell:  source {activate}\n", soft_wrap=True, markup=False
        )
    steps = RELEASED_STEPS + PRETRAIN_STEPS if "released" in result else PRETRAIN_STEPS
    console.print(steps, highlight=False, markup=False, soft_wrap=True)


def prepare_data(console: Console, speeches: list[Speech], out: Path) -> None:
    """Write the text, train the tokenizer and prepare the shards."""
    title = f"Text: train a tokenizer on {len(speeches)} messages to Congress"
    print_heading(console, 1, title)
    text = out / "text" / "speeches.txt"
    write_text(speeches, text)
    with show_bytes(console, "training the tokenizer") as progress:
        train_tokenizer([text], out / "tokenizer", vocab_size=VOCAB_SIZE, progress=progress)
    print_heading(console, 2, f"Shards: rows of {SEQ_LENGTH} tokens")
    with show_prepare(console) as shown:
        summary = prepare(
            [text],
            tokenizer=out / "tokenizer",
            out=out / "shards",
            length=SEQ_LENGTH,
            held_out=0.03,
            progress=shown,
        )
    console.print(
        f"{summary.rows:,} rows, {summary.tokens:,} tokens, {summary.held_out_rows} held out"
    )


def print_metrics(console: Console, metrics: dict[str, float]) -> None:
    """Explain the validation metrics."""
    console.print(
        f"On held-out text the generator replaces {metrics['replaced_rate']:.1%} of the tokens. "
        f"The discriminator detects {metrics['recall']:.0%} of them (recall), and "
        f"{metrics['precision']:.0%} of its detections are correct (precision). It scores a "
        f"replaced token above an original one in {metrics['auc']:.1%} of all pairs (AUC; 50 % is "
        "chance).",
        highlight=False,
    )


@torch.no_grad()
def print_detections(console: Console, run: Path, sentences: list[Sentence]) -> None:
    """Show held-out sentences, their corrupted form, and what the discriminator detects."""
    objective = restore_run(run)[1]
    tokenizer = load_tokenizer(run / "tokenizer")
    vocab = load_vocabulary(run / "tokenizer")
    objective.set_seed(2)
    for number, sentence in enumerate(sentences):
        objective.set_step(number)
        ids = tokenizer.encode(sentence.text, add_special_tokens=False).ids[: SEQ_LENGTH - 2]
        row = [vocab.cls, *ids, vocab.sep]
        stored = torch.tensor([[*row, len(row), len(row)]])
        output = objective(*objective.mask_batch(stored))
        inner = slice(1, len(row) - 1)
        tokens = [tokenizer.id_to_token(i) or "" for i in output.corrupted[0].tolist()][inner]
        probabilities = output.logits[0].sigmoid().tolist()[inner]
        print_detection(
            console, sentence.text, tokens, output.replaced[0].tolist()[inner], probabilities
        )
    console.print(
        "\n<yellow>: replaced by the generator. [red background]: detected by the discriminator.",
        markup=False,
        highlight=False,
    )


def print_detection(
    console: Console,
    original: str,
    tokens: list[str],
    replaced: list[bool],
    probabilities: list[float],
) -> None:
    """Show a sentence, its corrupted form, and what the discriminator detects."""
    lines = Table.grid(padding=(0, 1))
    lines.add_column(style="dim")
    lines.add_row("original", Text(original))
    lines.add_row("corrupted", mark_replaced(tokens, replaced))
    lines.add_row("detected", highlight(zip(tokens, probabilities, strict=True)))
    console.print()
    console.print(lines)


def mark_replaced(tokens: list[str], replaced: list[bool]) -> Text:
    """Join tokens into a text with the replaced ones marked."""
    text = Text()
    for token, changed in zip(tokens, replaced, strict=True):
        if text and not token.startswith("##"):
            text.append(" ")
        piece = token.removeprefix("##")
        text.append(f"<{piece}>" if changed else piece, style="bold yellow" if changed else "")
    return text


def word_order_task(
    console: Console, speeches: list[Speech], held_out: list[Speech]
) -> examples.Task:
    """Make the task: in half of the sentences, three pairs of neighbouring words are swapped."""
    train = sample_sentences(speeches, TRAIN_EXAMPLES, seed=0)
    dev = sample_sentences(held_out, DEV_EXAMPLES, seed=1)
    console.print(
        f"{len(train)} labelled sentences for training and {len(dev)} of held-out messages for "
        "evaluation; in half of them, three pairs of neighbouring words are swapped.",
        highlight=False,
    )
    return examples.Task(
        name="order",
        kind="classify",
        splits={"train": to_examples(train), "dev": to_examples(dev)},
        labels=("in order", "out of order"),
    )


def compare_finetuning(console: Console, run: Path, task: examples.Task) -> dict[str, list[float]]:
    """Fine-tune the pre-trained model and a randomly initialized one."""
    config = read_run_config(run)
    torch.manual_seed(0)
    vocab = load_vocabulary(run / "tokenizer")
    untrained = run.parent / "tuned" / "untrained"
    export(build_pair(config.model, config.generator)[1], untrained, vocab.pad)
    save_tokenizer(load_tokenizer(run / "tokenizer"), untrained)
    scores: dict[str, list[float]] = {}
    for name, model in (("pre-trained", run), ("from scratch", untrained)):
        out = run.parent / "tuned" / name.replace(" ", "-")
        results = finetune(
            *(str(model), task, out, range(NUM_SEEDS), FINETUNE, console),
            warn_truncation=not scores,  # once: both models read the same rows
        )
        scores[name] = [float(result["accuracy"]) for result in results]
    table = Table("", "accuracy", "seeds", box=None)
    for name, values in scores.items():
        seeds = " ".join(f"{v:.1%}" for v in values)
        table.add_row(name, f"{statistics.median(values):.1%} (median)", seeds)
    table.add_row("guessing", "50.0%", "")
    console.print(table)
    return scores


def to_examples(sentences: list[Sentence]) -> list[examples.Sentence]:
    """Make the examples of the word order task."""
    return [
        examples.Sentence(id=str(index), text=sentence.text, label=int(sentence.out_of_order))
        for index, sentence in enumerate(sentences)
    ]


def print_heading(console: Console, number: int, title: str) -> None:
    """Print the heading of a step."""
    console.print()
    console.rule(f"[bold]{number}. {title}", align="left")


def clear_folder(out: Path) -> None:
    """Make an empty folder; remove only what an earlier demo wrote."""
    if out.exists() and any(out.iterdir()):
        if not (out / RESULTS).is_file():
            raise UserError(
                f"{out} is not empty and not from an earlier demo: choose another --out."
            )
        for name in ("text", "tokenizer", "shards", "run", "tuned"):
            shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / RESULTS).write_text("{}\n", encoding="utf-8")
