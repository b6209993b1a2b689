"""A record from text to scores: tokenizer, shards, pre-training, package, GLUE, BLiMP, model card.

    python benchmarks/record.py OUT --text corpus/*.txt.xz --glue glue --blimp blimp

Each step is a command of the package, printed with its time; the same command continues with what
is missing. The package with the weights is written before anything is scored, so that it can be
copied to a safe place; OUT/scored has it again with the scores in its card. OUT/summary.json has
the medians over the seeds, the speed, the mean power of the GPU while it trained, and the commit.
--until stops after a step, such as `package`.
"""

import argparse
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from electra.config import override
from electra.errors import UserError
from electra.files import write_atomic
from electra.finetune.settings import FinetuneConfig
from electra.jsonl import read_jsonl
from electra.recipes import recipe
from electra.release.details import Evaluation, Score, read_card, read_details
from electra.release.package import check_name
from electra.tasks.blimp import load_blimp
from electra.tasks.glue import load_glue
from electra.train.metrics_log import read_metrics

ROOT = Path(__file__).parents[1]
SCORES = {"glue": "glue/results.jsonl", "stranger": "stranger.jsonl"}
"""The files with the score of each seed, in OUT."""
STRANGER = (
    "transformers' `ElectraForSequenceClassification`, 3e-5, batches of 32, 10 epochs, the same "
    "learning rate in all layers; dev."
)


def main() -> None:
    options = parse()
    try:
        check(options)
    except UserError as error:
        sys.exit(f"{error}")
    options.out.mkdir(parents=True, exist_ok=True)
    for name, step in STEPS.items():
        step(options)
        write_json(options.out / "summary.json", summary(options))
        if name == options.until:
            break
    print((options.out / "summary.json").read_text())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the record; continued if it exists")
    parser.add_argument("--text", nargs="+", required=True, help="files of text")
    parser.add_argument("--tokenizer", type=Path, help="instead of one from every third file")
    parser.add_argument("--glue", type=Path, required=True, help="the GLUE folder")
    parser.add_argument("--blimp", type=Path, required=True, help="the BLiMP folder")
    parser.add_argument("--recipe", default="fast.small")
    parser.add_argument("--budget", default="25min")
    parser.add_argument("--set", action="append", default=[], help="a setting, KEY=VALUE")
    parser.add_argument("--length", type=int, default=128, help="of the rows, in tokens")
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--tasks", default="cola,sst2,mrpc,stsb,rte")
    parser.add_argument("--seeds", type=int, default=5, help="of fine-tuning")
    parser.add_argument("--tuning", action="append", default=[], help="a setting of fine-tuning")
    parser.add_argument("--name", default="electra-record-en", help="of the package")
    parser.add_argument("--card", type=Path, help="YAML file for the model card")
    parser.add_argument("--commit", default="", help="for the scores; otherwise git's")
    parser.add_argument("--stranger", action="store_true", help="also GLUE by stranger.py")
    parser.add_argument("--until", choices=STEPS, default="card")
    return parser.parse_args()


def check(options: argparse.Namespace) -> None:
    """Refuse now what would end the record after the training."""
    if missing := [path for path in options.text if not Path(path).is_file()]:
        raise UserError(f"There is no file '{missing[0]}': give the files of text.")
    override(recipe(options.recipe), [*options.set, f"train.budget={options.budget}"])
    override(FinetuneConfig(), options.tuning)
    check_name(options.name)
    read_card(options.card)
    for task in options.tasks.split(","):
        load_glue(task, options.glue)
    load_blimp(options.blimp)


def shards(options: argparse.Namespace) -> None:
    """A tokenizer from every third file, unless one is given, and shards of all."""
    if (options.out / "run").exists():
        return
    tokenizer = options.tokenizer or options.out / "tokenizer"
    if not tokenizer.is_dir():
        electra("tokenizer", "train", *options.text[::3], "--out", tokenizer,
                "--vocab-size", options.vocab_size)  # fmt: skip
    electra("prepare", *options.text, "--tokenizer", tokenizer, "--out", options.out / "shards",
            "--length", options.length)  # fmt: skip


def train(options: argparse.Namespace) -> None:
    """Pre-train, or continue a run that was stopped."""
    run = options.out / "run"
    if (options.out / options.name).is_dir():
        return
    if (run / "config.yaml").is_file():
        words: tuple[Any, ...] = ("--resume", "--out", run)
    else:
        words = (options.recipe, "--data", options.out / "shards", "--out", run,
                 "--budget", options.budget, *options.set)  # fmt: skip
    with mean_power(options.out / "watts.json"):
        electra("pretrain", *words)


def package(options: argparse.Namespace) -> None:
    """The weights in fp16."""
    folder = options.out / options.name
    if not folder.is_dir():
        card = ("--card", options.card) if options.card else ()
        electra("release", options.out / "run", "--name", options.name, "--out", folder, *card)


def glue(options: argparse.Namespace) -> None:
    """Fine-tune the packaged weights on every task."""
    electra("glue", options.out / options.name, "--data", options.glue,
            "--out", options.out / "glue", "--tasks", options.tasks, "--seeds", options.seeds,
            *options.tuning)  # fmt: skip


def blimp(options: argparse.Namespace) -> None:
    """All scores of `electra probe`, and what knows no grammar."""
    if (options.out / "blimp.jsonl").is_file():
        return
    found = electra("probe", options.out / options.name, "--data", options.blimp,
                    "--network", "both", "--baseline", options.out / "shards", "--json",
                    quiet=True)  # fmt: skip
    write_atomic(options.out / "blimp.jsonl", found.encode())


def stranger(options: argparse.Namespace) -> None:
    """GLUE with the settings of somebody who does not know this package, if asked for."""
    if not options.stranger:
        return
    run([sys.executable, str(ROOT / "benchmarks" / "stranger.py"),
         str(options.out / options.name), "--data", options.glue,
         "--out", str(options.out / "stranger.jsonl"), "--tasks", options.tasks,
         "--seeds", str(options.seeds), "--workers", str(options.seeds)])  # fmt: skip


def electra(*words: object, quiet: bool = False) -> str:
    """Run a command of this package; return what it printed if it is quiet."""
    return run([sys.executable, "-m", "electra", *map(str, words)], quiet=quiet)


def run(command: Sequence[str], quiet: bool = False) -> str:
    """Run a command and print it with its time; its failure ends the record."""
    print("$", shlex.join(command), flush=True)
    began = time.perf_counter()
    done = subprocess.run(
        command, stdout=subprocess.PIPE if quiet else None, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.returncode)
    print(f"# {time.perf_counter() - began:.0f} s", flush=True)
    return done.stdout or ""


@contextmanager
def mean_power(path: Path) -> Any:
    """Write the mean power of the first GPU meanwhile, if there is one."""
    if not torch.cuda.is_available():
        yield
        return
    query = ["nvidia-smi", "--id=0", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
    watts: list[float] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(5):
            watts.append(float(subprocess.check_output(query, text=True)))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        mean = {"watts": statistics.fmean(watts) if watts else None}
        write_atomic(path, json.dumps(mean).encode())


def summary(options: argparse.Namespace) -> dict[str, Any]:
    """What the steps so far have found."""
    out: Path = options.out
    found: dict[str, Any] = {"recipe": options.recipe, "budget": options.budget}
    found["settings"] = options.set
    found["commit"] = options.commit or git_commit()
    found |= training(out)
    if (out / "watts.json").is_file():
        found |= json.loads((out / "watts.json").read_text())
    for name, path in SCORES.items():
        scores: dict[str, list[float]] = {}
        for line in read_jsonl(out / path):
            scores.setdefault(line["task"], []).append(round(100 * line["score"], 2))
        if scores:
            medians = {task: statistics.median(each) for task, each in scores.items()}
            mean = statistics.fmean(medians.values())
            found[name] = {"mean": mean, "medians": medians, "seeds": scores}
    whole = [line for line in read_jsonl(out / "blimp.jsonl") if line["phenomenon"] == "all"]
    if whole:
        found["blimp"] = {line["network"]: line["accuracy"] for line in whole}
    return found


def training(out: Path) -> dict[str, Any]:
    """The length, the speed and the last validation of the run so far."""
    metrics = read_metrics(out / "run")
    found: dict[str, Any] = {}
    if reports := [line for line in metrics if line["kind"] == "train"]:
        found |= {name: reports[-1][name] for name in ("step", "tokens", "seconds")}
        found["tokens_per_second"] = statistics.median(r["tokens_per_second"] for r in reports)
    if started := [line for line in metrics if line.get("message") == "started"]:
        found |= {name: started[0][name] for name in ("hardware", "kernels")}
    if validations := [line for line in metrics if line["kind"] == "held_out"]:
        kept = ("step", "loss", "mlm_loss", "generator_accuracy", "detection_loss", "auc", "recall")
        found["validation"] = {name: validations[-1].get(name) for name in kept}
    return found


def git_commit() -> str:
    """The commit of this script, if git knows it."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        return ""


def write_json(path: Path, value: object) -> None:
    write_atomic(path, (json.dumps(value, indent=2) + "\n").encode())


def card(options: argparse.Namespace) -> None:
    """The package again, now with the scores in its model card."""
    out, details, found = options.out, read_details(options.card), summary(options)
    evaluations = list(details.evaluations)
    settings = ", ".join(options.tuning) or "its default settings"
    for name, note in (("glue", f"`electra glue` with {settings}; dev."), ("stranger", STRANGER)):
        if name in found:
            evaluations.append(Evaluation(title="GLUE", note=note, file=SCORES[name]))
    if "blimp" in found:
        scores = tuple(
            Score(task=f"BLiMP, {network}", score=found["blimp"][network])
            for network in ("discriminator", "generator", "combined")
        )
        baseline = f"Token frequency alone gives {100 * found['blimp']['frequency']:.1f}."
        note = f"`electra probe --network both`. {baseline}"
        evaluations.append(Evaluation(title="BLiMP", note=note, scores=scores))
    details = replace(
        details,
        evaluations=tuple(evaluations),
        commit=details.commit or found["commit"],
        watts=details.watts or found.get("watts") or 0.0,
        watts_note=details.watts_note or "mean of nvidia-smi, GPU only",
    )
    write_json(out / "card.yaml", asdict(details))  # JSON is YAML, too
    scored = out / "scored"
    shutil.rmtree(scored, ignore_errors=True)
    electra("release", out / "run", "--name", options.name, "--out", scored / options.name,
            "--card", out / "card.yaml")  # fmt: skip


STEPS = {
    "shards": shards,
    "train": train,
    "package": package,
    "glue": glue,
    "blimp": blimp,
    "stranger": stranger,
    "card": card,
}


if __name__ == "__main__":
    main()
