"""A record from text to scores: tokenizer, shards, pre-training, package, GLUE, BLiMP.

    python benchmarks/record.py OUT --text corpus/*.txt.xz --glue glue --blimp blimp \
        --budget 25min --set data.batch_size=256 --set optim.lr=8e-4

Each step is a command of the package, printed with its time; the same command continues with what
is missing. The package with the weights is written before anything is scored, so that it can be
copied to a safe place. OUT/summary.json has the medians over the seeds, the speed, the mean power
of the GPU while it trained, and the commit. --until stops after a step, such as `package`.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from electra.files import write_atomic
from electra.jsonl import read_jsonl
from electra.train.metrics_log import read_metrics

ROOT = Path(__file__).parents[1]
STEPS = ("shards", "train", "package", "glue", "blimp", "stranger")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the record; continued if it exists")
    parser.add_argument("--text", nargs="+", required=True, help="files of text")
    parser.add_argument("--glue", required=True, help="the GLUE folder")
    parser.add_argument("--blimp", required=True, help="the BLiMP folder")
    parser.add_argument("--recipe", default="paper.small")
    parser.add_argument("--budget", default="25min")
    parser.add_argument("--set", action="append", default=[], help="a setting, KEY=VALUE")
    parser.add_argument("--length", type=int, default=128, help="of the rows, in tokens")
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--tasks", default="cola,sst2,mrpc,stsb,rte")
    parser.add_argument("--seeds", type=int, default=5, help="of fine-tuning")
    parser.add_argument("--tuning", action="append", default=[], help="a setting of fine-tuning")
    parser.add_argument("--name", default="electra-record-en", help="of the package")
    parser.add_argument("--card", help="YAML file for the model card")
    parser.add_argument("--until", choices=STEPS, default="blimp")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for step in STEPS[: STEPS.index(options.until) + 1]:
        globals()[step](options)
    found = summary(options)
    write_atomic(options.out / "summary.json", (json.dumps(found, indent=2) + "\n").encode())
    print(json.dumps(found))


def shards(options: argparse.Namespace) -> None:
    """A tokenizer from every third file, and shards of all."""
    tokenizer = options.out / "tokenizer"
    if not tokenizer.is_dir():
        electra("tokenizer", "train", *options.text[::3], "--out", tokenizer,
                "--vocab-size", options.vocab_size)  # fmt: skip
    electra("prepare", *options.text, "--tokenizer", tokenizer, "--out", options.out / "shards",
            "--length", options.length)  # fmt: skip


def train(options: argparse.Namespace) -> None:
    """Pre-train, or continue a run that was stopped."""
    run = options.out / "run"
    if any((run / "checkpoints").glob("step-*")):
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
    found = electra("probe", options.out / options.name, "--data", options.blimp,
                    "--network", "both", "--baseline", options.out / "shards", "--json",
                    quiet=True)  # fmt: skip
    write_atomic(options.out / "blimp.jsonl", found.encode())


def stranger(options: argparse.Namespace) -> None:
    """GLUE with the settings of somebody who does not know this package."""
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
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
                            capture_output=True, text=True, check=False)  # fmt: skip
    found["commit"] = commit.stdout.strip()
    metrics = read_metrics(out / "run")
    validations = [line for line in metrics if line["kind"] == "held_out"]
    if validations:
        kept = ("step", "mlm_loss", "generator_accuracy", "detection_loss", "auc")
        found["validation"] = {name: validations[-1].get(name) for name in kept}
    if (out / "watts.json").is_file():
        found |= json.loads((out / "watts.json").read_text())
    for name, path in (("glue", "glue/results.jsonl"), ("stranger", "stranger.jsonl")):
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


if __name__ == "__main__":
    main()
