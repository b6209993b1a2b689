"""Fine-tuning compared with transformers.Trainer: same model, task, data, batch size and epochs.

    python benchmarks/finetune.py MODEL --task cola --data glue --seeds 5 --peer-seeds 3

MODEL is the folder of a discriminator. Both use the head of ElectraForSequenceClassification, one
learning rate for all layers, AdamW with bias correction, 10 % warm-up, bf16 on CUDA and fp32 on the
CPU; transformers pads each batch to its longest row (DataCollatorWithPadding) and uses its fused
optimizer. Times cover tokenization, training and evaluation, without imports.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from electra.finetune.run import finetune
from electra.finetune.settings import FinetuneConfig
from electra.tasks.examples import Task
from electra.tasks.glue import load_glue
from electra.tasks.metrics import score_sentences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--task", default="cola")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peer-seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--examples", type=int, default=0, help="of the training set; 0 is all")
    parser.add_argument("--warm", action="store_true", help="a short trial of each side first")
    options = parser.parse_args()
    task = load_glue(options.task, options.data)
    if options.examples:
        train = task.splits["train"][: options.examples]
        task = replace(task, splits={**task.splits, "train": train})
    task = replace(task, swap=False, splits={k: task.splits[k] for k in ("train", "dev")})
    if options.warm:
        short = replace(
            task, splits={"train": task.splits["train"][:320], "dev": task.splits["dev"]}
        )
        ours(options.model, short, 1, options.seeds, options.lr)
        peer(options.model, short, 1, 0, options.lr)
    found: dict[str, dict[str, Any]] = {
        "ours": ours(options.model, task, options.epochs, options.seeds, options.lr)
    }
    runs = [
        peer(options.model, task, options.epochs, s, options.lr) for s in range(options.peer_seeds)
    ]
    found["peer"] = {
        "seconds_per_seed": statistics.median(r["seconds"] for r in runs),
        "scores": [r["score"] for r in runs],
    }
    ratio = found["peer"]["seconds_per_seed"] / found["ours"]["seconds_per_seed"]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    print(
        json.dumps(
            {
                "task": options.task,
                "train": len(task.splits["train"]),
                "epochs": options.epochs,
                "seeds": options.seeds,
                "device": device,
                "threads": torch.get_num_threads(),
                "ratio_per_seed": round(ratio, 2),
                **found,
            }
        )
    )


def ours(model: Path, task: Task, epochs: float, seeds: int, lr: float) -> dict[str, Any]:
    """All seeds by `electra finetune`."""
    config = FinetuneConfig(
        head="transformers", layer_decay=1.0, bias_correction=True, lr=lr, epochs=epochs
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        out = Path(folder) / "out"
        results = finetune(str(model), task, out, range(seeds), config, Console(stderr=True))
        seconds = time.perf_counter() - began
    return {
        "seconds_per_seed": round(seconds / seeds, 2),
        "training_seconds_per_seed": results[0]["training_seconds"],
        "scores": [r["score"] for r in results],
    }


def peer(model: Path, task: Task, epochs: float, seed: int, lr: float) -> dict[str, float]:
    """One seed by transformers.Trainer."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    began = time.perf_counter()
    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model)
    sets = {}
    for name, examples in task.splits.items():
        texts, pairs = [e.text for e in examples], [e.pair for e in examples]
        encoded = tokenizer(texts, pairs if pairs[0] else None, truncation=True, max_length=128)
        keys = list(encoded)
        regress = task.kind == "regress"
        sets[name] = [
            {k: encoded[k][i] for k in keys}
            | {"labels": float(e.label) if regress else int(e.label)}
            for i, e in enumerate(examples)
        ]
    network = AutoModelForSequenceClassification.from_pretrained(
        model, num_labels=max(1, len(task.labels))
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=network,
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=32,
                per_device_eval_batch_size=256,
                num_train_epochs=epochs,
                learning_rate=lr,
                warmup_steps=0.1,
                weight_decay=0.0,
                adam_epsilon=1e-6,
                bf16=torch.cuda.is_available(),
                use_cpu=not torch.cuda.is_available(),
                seed=seed,
                report_to=[],
                save_strategy="no",
                logging_steps=10_000,
                disable_tqdm=True,
                dataloader_num_workers=0,
            ),
            train_dataset=sets["train"],
            data_collator=DataCollatorWithPadding(tokenizer),
        )
        trainer.train()
        logits = trainer.predict(sets["dev"]).predictions
    guesses = logits[:, 0] if task.kind == "regress" else logits.argmax(-1)
    score = score_sentences(task, task.splits["dev"], guesses)[task.metric]
    return {"seconds": time.perf_counter() - began, "score": score}


if __name__ == "__main__":
    main()
