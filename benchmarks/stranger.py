"""GLUE as someone who has never seen this project would fine-tune: plain transformers.

    python benchmarks/stranger.py MODEL --data glue --out stranger.jsonl --seeds 5 --workers 5

ElectraForSequenceClassification, AdamW, learning rate 3e-5, batches of 32, 10 epochs, one rate for
all layers (BabyLM's settings); the rest is what transformers.Trainer does by default: linear decay
without warm-up, no weight decay, gradients clipped to a norm of 1, batches padded to their longest
row, bf16 autocast on CUDA. The score is that of the last epoch on dev, by our metrics.

On a CPU with AVX-512 bf16, --precision bf16 takes less than half the time of fp32.

Each task and seed is a line of --out; the same command continues with those that are missing. A
small model leaves a GPU idle most of the time, so --workers trains that many seeds in processes of
their own. The medians are printed as JSON lines. The file can be an evaluation of a model card.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from electra.device import Precision, autocast, choose_device, choose_precision
from electra.errors import UserError
from electra.files import file_sha256
from electra.finetune.results import summary
from electra.jsonl import read_jsonl, to_json
from electra.model_paths import resolve_model
from electra.tasks.examples import Sentence, Task
from electra.tasks.glue import load_glue, normalize_name
from electra.tasks.metrics import is_constant, score_sentences

TASKS = "sst2,cola,stsb,mrpc,rte"
"""The largest first, so that parallel workers finish together."""
EVAL_BATCH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One task and seed."""

    task: str
    seed: int
    model: str
    data: Path
    lr: float
    epochs: int
    batch_size: int
    warmup: float
    max_length: int
    rows: int
    precision: Precision
    threads: int

    def settings(self) -> dict[str, Any]:
        """What decides the result, besides model, task and seed."""
        names = ("lr", "epochs", "batch_size", "warmup", "max_length", "rows", "precision")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Tokenized examples on the device, padded to the longest."""

    ids: Tensor  # (rows, length)
    segments: Tensor
    labels: Tensor
    lengths: npt.NDArray[np.int64]

    def batch(self, index: npt.NDArray[np.int64]) -> dict[str, Tensor]:
        """Some rows as arguments of the model, padded to the longest of them."""
        lengths = self.lengths[index]
        width = int(lengths.max())
        device = self.ids.device
        rows = torch.from_numpy(index).to(device)
        ends = torch.from_numpy(lengths).to(device)
        return {
            "input_ids": self.ids[rows, :width].long(),
            "token_type_ids": self.segments[rows, :width].long(),
            "attention_mask": (torch.arange(width, device=device) < ends[:, None]).long(),
            "labels": self.labels[rows],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a run, a model folder, or the name of an installed model")
    parser.add_argument("--data", type=Path, required=True, help="the GLUE folder")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, continued")
    parser.add_argument("--tasks", default=TASKS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--warmup", type=float, default=0.0, help="share of the steps")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=0, help="of the training set; 0 is all")
    parser.add_argument("--precision", choices=("auto", "bf16", "fp32"), default="auto")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    options = parser.parse_args()
    for name in ("seeds", "epochs", "batch_size", "max_length", "workers"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if options.rows < 0 or not 0 < options.lr < 1 or not 0 <= options.warmup <= 1:
        parser.error("--rows must be at least 0, --lr and --warmup fractions of 1")
    folder = resolve_model(options.model, "encoder")
    jobs = [
        Job(
            task=normalize_name(task),
            seed=seed,
            model=str(folder),
            data=options.data,
            lr=options.lr,
            epochs=options.epochs,
            batch_size=options.batch_size,
            warmup=options.warmup,
            max_length=options.max_length,
            rows=options.rows,
            precision=options.precision,
            threads=max(1, torch.get_num_threads() // options.workers),
        )
        for task in options.tasks.split(",")
        for seed in range(options.seeds)
    ]
    sha256 = file_sha256(folder / "model.safetensors")
    done = {key_of(line): line for line in read_jsonl(options.out)}
    keys = {key_of(origin(job, sha256)): job for job in jobs}
    todo = [job for key, job in keys.items() if key not in done]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for result in run_jobs(todo, options.workers):
        line = origin(result.pop("job"), sha256) | {"model": options.model} | result
        with options.out.open("a", encoding="utf-8") as file:
            file.write(to_json(line) + "\n")
        done[key_of(line)] = line
    rows = []
    for task in dict.fromkeys(job.task for job in jobs):
        rows.append(summary([done[key] for key, job in keys.items() if job.task == task]))
        print(to_json(rows[-1]))
    mean = statistics.fmean(row["median"] for row in rows)
    print(to_json({"mean_of_medians": mean, "tasks": len(rows), **jobs[0].settings()}))


def origin(job: Job, sha256: str) -> dict[str, Any]:
    """What makes a result the one of this job."""
    return {
        "task": job.task,
        "seed": job.seed,
        "model_sha256": sha256,
        "settings": job.settings(),
    }


def key_of(line: dict[str, Any]) -> str:
    return json.dumps([line[k] for k in ("task", "seed", "model_sha256", "settings")])


def run_jobs(jobs: list[Job], workers: int) -> Iterator[dict[str, Any]]:
    """Yield results as they are ready, from this process or from several."""
    if workers == 1:
        yield from map(train, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, max(1, len(jobs))), mp_context=context) as pool:
        for future in as_completed([pool.submit(train, job) for job in jobs]):
            yield future.result()


@cache
def load_rows(
    name: str, data: Path, model: str, max_length: int, rows: int
) -> tuple[Task, Rows, Rows]:
    """The task, its training rows and its dev rows; tokenized once in a process."""
    from transformers import AutoTokenizer

    task = load_glue(name, data)
    if rows:
        train = task.splits["train"][:rows]
        task = replace(task, splits={"train": train, "dev": task.splits["dev"]})
    tokenizer = AutoTokenizer.from_pretrained(model)
    train_rows, dev_rows = (
        encode(tokenizer, task, task.splits[split], max_length) for split in ("train", "dev")
    )
    return task, train_rows, dev_rows


def encode(tokenizer: Any, task: Task, examples: Sequence[Sentence], max_length: int) -> Rows:
    """Tokenize examples and put them on the device."""
    texts, pairs = [e.text for e in examples], [e.pair for e in examples]
    limit = min(max_length, tokenizer.model_max_length)
    encoded = tokenizer(
        texts,
        pairs if pairs[0] is not None else None,
        truncation=True,
        max_length=limit,
        padding=True,
        return_token_type_ids=True,
        return_tensors="np",
    )
    device = choose_device("auto", "device")
    dtype = torch.float32 if task.kind == "regress" else torch.int64
    return Rows(
        ids=torch.from_numpy(encoded["input_ids"].astype(np.int32)).to(device),
        segments=torch.from_numpy(encoded["token_type_ids"].astype(np.int8)).to(device),
        labels=torch.tensor([e.label for e in examples], dtype=dtype, device=device),
        lengths=encoded["attention_mask"].sum(1).astype(np.int64),
    )


def train(job: Job) -> dict[str, Any]:
    """Fine-tune one seed; returns its scores after every epoch and the time."""
    from transformers import ElectraForSequenceClassification, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(job.threads)
    task, rows, dev = load_rows(job.task, job.data, job.model, job.max_length, job.rows)
    device = rows.ids.device
    dtype = choose_precision(job.precision, device)
    torch.manual_seed(job.seed)
    network = ElectraForSequenceClassification.from_pretrained(
        job.model, num_labels=max(1, len(task.labels)), dtype=torch.float32
    ).to(device)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=job.lr, weight_decay=0.0, fused=device.type == "cuda"
    )
    count = len(rows.lengths)
    total = job.epochs * -(-count // job.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, total, job.warmup)
    )
    began, scores = time.perf_counter(), []
    for epoch in range(job.epochs):
        network.train()
        order = np.random.default_rng((job.seed, epoch)).permutation(count)
        for begin in range(0, count, job.batch_size):
            batch = rows.batch(order[begin : begin + job.batch_size])
            with autocast(device, dtype):
                loss = network(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        predictions = predict(network, task, dev, dtype)
        scores.append(score_sentences(task, task.splits["dev"], predictions))
    return {
        "job": job,
        "metric": task.metric,
        "score": scores[-1][task.metric],
        "failed": is_constant(task, predictions),
        **scores[-1],
        "by_epoch": [round(score[task.metric], 4) for score in scores],
        "seconds": round(time.perf_counter() - began, 1),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else device.type,
    }


def learning_rate_factor(step: int, total: int, warmup: float) -> float:
    """Linear warm-up and linear decay to 0, as `get_linear_schedule_with_warmup`."""
    warm = round(warmup * total)
    if step < warm:
        return step / warm
    return max(0.0, (total - step) / max(1, total - warm))


@torch.no_grad()
def predict(network: Any, task: Task, rows: Rows, dtype: torch.dtype) -> npt.NDArray[Any]:
    """A label index or a value for each row; rows of similar length go together."""
    network.eval()
    order = np.argsort(rows.lengths, kind="stable")
    outputs = []
    for begin in range(0, len(order), EVAL_BATCH):
        batch = rows.batch(order[begin : begin + EVAL_BATCH])
        del batch["labels"]
        with autocast(rows.ids.device, dtype):
            outputs.append(network(**batch).logits.float())
    logits = torch.cat(outputs).cpu().numpy()
    found = logits[:, 0] if task.kind == "regress" else logits.argmax(-1)
    predictions = np.empty_like(found)
    predictions[order] = found
    return predictions


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
