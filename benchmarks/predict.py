"""Classification of short texts on the CPU compared with eager transformers: same model and texts.

    python benchmarks/predict.py MODEL --data glue

MODEL is the folder of a discriminator; it gets a head with random weights. transformers reads
batches of 32 in file order, padded to their longest text. Both run alternately.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from electra.finetune.infer import infer
from electra.finetune.kinds import make_kind
from electra.finetune.task_model import load_task_model, new_task_model, save_task_model
from electra.hub.folders import load_encoder
from electra.hub.heads import TaskCard
from electra.tasks.glue import load_glue
from electra.text.tokenizer import load_tokenizer, load_vocabulary, save_tokenizer

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="GLUE; SST-2's dev is read")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    examples = load_glue("sst2", options.data).splits["dev"]
    with tempfile.TemporaryDirectory() as folder:
        make_model(options.model, Path(folder))
        network, card = load_task_model(Path(folder))
        tokenizer, vocab = load_tokenizer(Path(folder)), load_vocabulary(Path(folder))
        theirs = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        reader = AutoTokenizer.from_pretrained(folder)

    def ours(dtype: torch.dtype) -> np.ndarray:
        kind = make_kind(card)
        rows = kind.featurize(examples, tokenizer, vocab)
        (found,) = infer(network, rows, kind, pad_id=vocab.pad, device=CPU, dtype=dtype)
        return found["scores"]

    @torch.no_grad()
    def peer() -> np.ndarray:
        found = []
        for begin in range(0, len(examples), 32):
            texts = [example.text for example in examples[begin : begin + 32]]
            found.append(theirs(**reader(texts, padding=True, return_tensors="pt")).logits)
        return torch.cat(found).numpy()

    sides = {
        "fp32": lambda: ours(torch.float32),
        "bf16": lambda: ours(torch.bfloat16),
        "peer": peer,
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    answers = {}
    for _ in range(options.runs):
        for name, side in sides.items():
            began = time.perf_counter()
            answers[name] = side()
            seconds[name].append(time.perf_counter() - began)
    median = {name: statistics.median(each) for name, each in seconds.items()}
    print(
        json.dumps(
            {
                "texts": len(examples),
                "threads": options.threads,
                "seconds": {name: round(value, 2) for name, value in median.items()},
                "times_faster": {n: round(median["peer"] / median[n], 2) for n in ("fp32", "bf16")},
                "largest_difference": {
                    n: float(np.abs(answers[n] - answers["peer"]).max()) for n in ("fp32", "bf16")
                },
            }
        )
    )


def make_model(discriminator: Path, folder: Path) -> None:
    """A classifier that both sides can load."""
    torch.manual_seed(0)
    card = TaskCard(name="sst2", kind="classify", labels=["0", "1"], head="transformers")
    model = new_task_model(card, load_encoder(discriminator))
    save_task_model(model, folder, card, load_vocabulary(discriminator).pad)
    save_tokenizer(load_tokenizer(discriminator), folder)


if __name__ == "__main__":
    main()
