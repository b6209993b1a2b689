"""`electra demo`: text, tokenizer, shards, pre-training, what was learned, fine-tuning."""

import json
import shutil
import statistics
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from electra.config import override
from electra.demo.speeches import (
    Sentence,
    Speech,
    read_speeches,
    sentences,
    split,
    write_text,
)
from electra.errors import UserError
from electra.finetune.run import finetune
from electra.finetune.settings import FinetuneConfig
from electra.hub.folders import export
from electra.hub.highlight import highlight
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
from electra.train.pretrain import read_run_config, start
from electra.train.report import write_report

MARK = "demo.json"
VOCABULARY, LENGTH, SEEDS = 2048, 64, 3
LABELLED, JUDGED = 1000, 1000
"""Labelled sentences to learn from, and others to be judged by."""
TUNING = FinetuneConfig(
    lr=3e-4,
    layer_decay=1.0,
    epochs=8,
    batch_size=16,
    max_length=LENGTH,
    pool="max",  # the toy's one layer cannot gather a sentence in [CLS]
    device="cpu",
)

NEXT = """\
Now with your own text:

  electra tokenizer train my-text.txt --out tokenizer --vocab-size 30522
  electra prepare my-text.txt --tokenizer tokenizer --out shards --length 128
  electra pretrain paper.small --data shards --out runs/mine --budget 2h
  electra evaluate runs/mine --data shards
  electra report runs/mine
  electra detect runs/mine "a sentence with one parliament word"
  electra fill runs/mine "a sentence with one [MASK] word"
  electra finetune runs/mine classify --data my-labels.csv --out tuned
"""


def run_demo(out: Path, budget: str | None, console: Console) -> None:
    """Everything in one folder, which is made anew each time."""
    began = time.monotonic()
    changes = [f"data.folder={out / 'shards'}", "train.device=cpu"]
    if budget is not None:
        changes.append(f"train.budget={budget}")
    config = override(recipe("toy"), changes)
    speeches, aside = split(read_speeches())
    _make_room(out)
    heading(console, 1, f"Text: {len(speeches)} messages to Congress, and a tokenizer from them")
    text = out / "text" / "speeches.txt"
    write_text(speeches, text)
    with show_bytes(console, "learning the vocabulary") as progress:
        train_tokenizer([text], out / "tokenizer", vocab_size=VOCABULARY, progress=progress)
    heading(console, 2, f"Shards: rows of {LENGTH} tokens")
    with show_prepare(console) as shown:
        summary = prepare(
            [text],
            tokenizer=out / "tokenizer",
            out=out / "shards",
            length=LENGTH,
            held_out=0.03,
            progress=shown,
        )
    console.print(
        f"{summary.rows:,} rows, {summary.tokens:,} tokens, {summary.held_out_rows} held out"
    )
    heading(console, 3, "Pre-training: a generator and a discriminator, on the CPU")
    code = start(config, out / "run", console)
    if code:
        raise SystemExit(code)
    heading(console, 4, "What it learned")
    metrics = checkpoint.read_state(checkpoint.checkpoints(out / "run")[-1]).held_out
    show_learned(console, metrics)
    show_sentences(console, out / "run", sentences(aside, 6, seed=4)[::2])
    picture, page = write_report(out / "run", out)
    console.print(f"Curves: {picture}   Page: {page}", soft_wrap=True, markup=False)
    heading(console, 5, "Fine-tuning: is a sentence in order, or did words change places?")
    scores = compare(console, out / "run", speeches, aside)
    seconds = time.monotonic() - began
    result = {"seconds": round(seconds, 1), "held_out": metrics, "order_accuracy": scores}
    (out / MARK).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    took = f"\nThe demo took {seconds / 60:.1f} minutes; everything is in {out}/\n"
    console.print(took, markup=False)
    if shutil.which("electra") is None:  # run from its environment, which the shell does not know
        activate = Path(sys.prefix) / "bin" / "activate"
        console.print(
            f"First, once in each shell:  source {activate}\n", soft_wrap=True, markup=False
        )
    console.print(NEXT, highlight=False, markup=False, soft_wrap=True)


def show_learned(console: Console, metrics: dict[str, float]) -> None:
    """The held-out figures in sentences."""
    console.print(
        f"On held-out text the generator replaces {metrics['replaced_rate']:.1%} of the tokens. "
        f"The discriminator finds {metrics['recall']:.0%} of those (recall), is right in "
        f"{metrics['precision']:.0%} of its alarms (precision), and ranks a replaced token above "
        f"an original one in {metrics['auc']:.1%} of all pairs (AUC; 50 % is chance).",
        highlight=False,
    )


@torch.no_grad()
def show_sentences(console: Console, run: Path, examples: list[Sentence]) -> None:
    """Unseen sentences as the generator left them, with the discriminator's verdict."""
    objective = restore_run(run)[1]
    tokenizer = load_tokenizer(run / "tokenizer")
    vocab = load_vocabulary(run / "tokenizer")
    objective.set_seed(2)
    for number, example in enumerate(examples):
        objective.set_step(number)
        ids = tokenizer.encode(example.text, add_special_tokens=False).ids[: LENGTH - 2]
        row = [vocab.cls, *ids, vocab.sep]
        stored = torch.tensor([[*row, len(row), len(row)]])
        outcome = objective(*objective.mask_batch(stored))
        tokens = [tokenizer.id_to_token(i) or "" for i in outcome.corrupted[0].tolist()]
        inner = slice(1, len(row) - 1)
        chances = outcome.logits[0].sigmoid().tolist()[inner]
        console.print()
        console.print(Text("original  ", style="dim").append(example.text, style="default"))
        corrupted = Text("generator ", style="dim")
        for token, changed in zip(tokens[inner], outcome.replaced[0].tolist()[inner], strict=True):
            glue = "" if token.startswith("##") else " "
            word = token.removeprefix("##")
            if changed:
                corrupted.append(f"{glue}<{word}>", style="bold yellow")
            else:
                corrupted.append(glue + word, style="default")
        console.print(corrupted)
        verdict = highlight(zip(tokens[inner], chances, strict=True))
        console.print(Text("verdict    ", style="dim").append_text(verdict))
    console.print(
        "\n<yellow>: what the generator replaced. Red ground, [alarm]: what the discriminator "
        "suspects.",
        markup=False,
        highlight=False,
    )


def compare(
    console: Console, run: Path, speeches: list[Speech], aside: list[Speech]
) -> dict[str, list[float]]:
    """The same task and settings from the pre-trained weights and from new ones, side by side."""
    config = read_run_config(run)
    learned, judged = sentences(speeches, LABELLED, seed=0), sentences(aside, JUDGED, seed=1)
    task = examples.Task(
        name="order",
        kind="classify",
        splits={"train": labelled(learned), "dev": labelled(judged)},
        labels=("in order", "out of order"),
    )
    torch.manual_seed(0)  # the same sizes and the same way to start, but no pre-training
    vocab = load_vocabulary(run / "tokenizer")
    untrained = run.parent / "tuned" / "untrained"
    export(build_pair(config.model, config.generator)[1], untrained, vocab.pad)
    save_tokenizer(load_tokenizer(run / "tokenizer"), untrained)
    scores = {}
    for arm, model in (("pre-trained", run), ("from scratch", untrained)):
        out = run.parent / "tuned" / arm.replace(" ", "-")
        results = finetune(str(model), task, out, range(SEEDS), TUNING, console)
        scores[arm] = [float(result["accuracy"]) for result in results]
    table = Table("", "accuracy", "seeds", box=None)
    for arm, values in scores.items():
        each = " ".join(f"{v:.1%}" for v in values)
        table.add_row(arm, f"{statistics.median(values):.1%} (median)", each)
    table.add_row("guessing", "50.0%", "")
    console.print(
        f"{len(learned)} labelled sentences to learn from, {len(judged)} of other messages to be "
        "judged by; in half of them neighbouring words changed places three times.",
        highlight=False,
    )
    console.print(table)
    return scores


def labelled(found: list[Sentence]) -> list[examples.Sentence]:
    """Sentences as examples of the task."""
    return [
        examples.Sentence(id=str(number), text=each.text, label=int(each.disordered))
        for number, each in enumerate(found)
    ]


def heading(console: Console, number: int, title: str) -> None:
    """Begin a part."""
    console.print()
    console.rule(f"[bold]{number}. {title}", align="left")


def _make_room(out: Path) -> None:
    """An empty folder; only what an earlier demo wrote is removed."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARK).is_file():
            raise UserError(f"{out} is not empty and not of an earlier demo: choose another --out.")
        for name in ("text", "tokenizer", "shards", "run", "tuned"):
            shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).write_text("{}\n", encoding="utf-8")
