"""What pre-training on some text brings a tagging task, beside the same network without it.

    python benchmarks/tagging.py OUT --text vi_wiki.txt.xz --task vi/task --budget 15min \
        --tokenizer '--vocab-size 16000 --keep-accents' --set data.batch_size=256
    python benchmarks/tagging.py OUT --text bio/text.txt --task bio/task --budget 2min \
        --model electra-small-en

A tokenizer, shards and a run are made from the text, and each encoder is fine-tuned with several
seeds: the run's, and random weights of its size. With --model, whose tokenizer is used instead,
also the model itself, and the model after more pre-training on the text for the same budget. Each
step is a command of the package; the same command continues with what is missing.
In the summary that run is `pre-trained`, and `--model` is `not adapted` and `adapted`.
OUT/summary.json has the scores of all seeds, and OUT/inspect.txt says how the tokenizer fits.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from electra.files import write_atomic
from electra.hub.folders import export
from electra.jsonl import read_jsonl
from electra.model_paths import resolve_model
from electra.models.electra import build_pair
from electra.text.tokenizer import load_tokenizer, load_vocabulary, save_tokenizer
from electra.train.metrics_log import read_metrics
from electra.train.run_config import read_run_config

ROOT = Path(__file__).parents[1]
FROM_SCRATCH = ("layer_decay=1", "bias_correction=true")
"""Fine-tuning settings for random weights: with layer-wise decay, lower layers hardly learn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the results; continued if it exists")
    parser.add_argument("--text", nargs="+", required=True, help="files of text")
    parser.add_argument("--task", required=True, help="a folder for `electra finetune … tag`")
    parser.add_argument("--model", help="the model to adapt")
    parser.add_argument("--recipe", default="paper.small")
    parser.add_argument("--budget", default="15min", help="of each pre-training run")
    parser.add_argument("--length", default="128", help="of the rows, in tokens")
    parser.add_argument("--tokenizer", default="", help="options of `electra tokenizer train`")
    parser.add_argument("--set", action="append", default=[], help="a setting of the run")
    parser.add_argument("--adapt-set", action="append", default=[], help="the same for the model")
    parser.add_argument("--tuning", action="append", default=[], help="a setting of fine-tuning")
    parser.add_argument("--seeds", default="5", help="of fine-tuning")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    make_shards(options)
    encoders = {"pre-trained": options.out / "run"}
    pretrain(options, "run", options.recipe, *options.set)
    if options.model:
        pretrain(options, "adapted", "--init-from", options.model, *options.adapt_set)
        encoders |= {"not adapted": options.model, "adapted": options.out / "adapted"}
    encoders["random weights"] = untrained(options.out)
    for name, encoder in encoders.items():
        settings = (*(FROM_SCRATCH if name == "random weights" else ()), *options.tuning)
        electra("finetune", encoder, "tag", "--data", options.task, "--seeds", options.seeds,
                "--out", tuned(options.out, name), *settings)  # fmt: skip
    found = summary(options, list(encoders))
    write_atomic(options.out / "summary.json", (json.dumps(found, indent=2) + "\n").encode())
    print(json.dumps(found))


def make_shards(options: argparse.Namespace) -> None:
    """Shards of the text with the model's tokenizer, or with one that is trained on the text."""
    if options.model:
        tokenizer = Path(resolve_model(options.model, "discriminator"))
    else:
        tokenizer = options.out / "tokenizer"
        if not tokenizer.is_dir():
            electra("tokenizer", "train", *options.text, "--out", tokenizer,
                    *shlex.split(options.tokenizer))  # fmt: skip
    said = electra("tokenizer", "inspect", tokenizer, *options.text, quiet=True)
    write_atomic(options.out / "inspect.txt", said.encode())
    electra("prepare", *options.text, "--tokenizer", tokenizer, "--length", options.length,
            "--out", options.out / "shards")  # fmt: skip


def pretrain(options: argparse.Namespace, name: str, *words: str) -> None:
    """Start a run, or continue it where it was stopped."""
    run = options.out / name
    if (run / "config.yaml").is_file():
        electra("pretrain", "--resume", "--out", run)
    else:
        electra("pretrain", *words, "--data", options.out / "shards", "--out", run,
                "--budget", options.budget)  # fmt: skip


def untrained(out: Path) -> Path:
    """Write the discriminator of the run with random weights."""
    folder, config = out / "untrained", read_run_config(out / "run")
    if not folder.is_dir():
        torch.manual_seed(0)
        tokenizer = out / "run" / "tokenizer"
        vocab = load_vocabulary(tokenizer)
        export(build_pair(config.model, config.generator)[1], folder, vocab.pad)
        save_tokenizer(load_tokenizer(tokenizer), folder)
    return folder


def tuned(out: Path, name: str) -> Path:
    return out / "tuned" / name.replace(" ", "-")


def summary(options: argparse.Namespace, names: list[str]) -> dict[str, Any]:
    """The settings, how the runs ended, and the scores of each encoder."""
    given = {name: value for name, value in vars(options).items() if name != "out"}
    found: dict[str, Any] = {"commit": git_commit(), "options": given, "scores": {}}
    for name in ("run", "adapted"):
        lines = [x for x in read_metrics(options.out / name) if x["kind"] == "held_out"]
        kept = ("step", "mlm_loss", "generator_accuracy", "detection_loss", "auc")
        if lines:
            found[name] = {key: lines[-1].get(key) for key in kept}
    for name in names:
        seeds: dict[str, list[float]] = {}
        for line in read_jsonl(tuned(options.out, name) / "results.jsonl"):
            for key, value in line.items():
                if key in ("score", "accuracy", "f1", "test_accuracy", "test_f1"):
                    seeds.setdefault(key, []).append(round(100 * value, 2))
        medians = {key: statistics.median(values) for key, values in seeds.items()}
        found["scores"][name] = {"medians": medians, "seeds": seeds}
    return found


def git_commit() -> str:
    """The commit of this script, if git knows it."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        return ""


def electra(*words: object, quiet: bool = False) -> str:
    """Run a command of this package; its failure ends the script."""
    command = [sys.executable, "-m", "electra", *map(str, words)]
    print("$", shlex.join(["electra", *command[3:]]), flush=True)
    done = subprocess.run(
        command, stdout=subprocess.PIPE if quiet else None, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout or ""


if __name__ == "__main__":
    main()
