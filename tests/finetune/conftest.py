"""A tiny encoder and made-up tasks that it learns in seconds."""

import io
import random

import numpy as np
import pytest
import torch
from rich.console import Console

from electra.finetune.run import finetune
from electra.finetune.settings import FinetuneConfig
from electra.hub.folders import export
from electra.models.electra import Discriminator
from electra.models.encoder import Encoder, EncoderConfig
from electra.tasks.examples import IGNORE_INDEX, Features
from electra.tasks.load import load_task
from electra.text.tokenizer import load_tokenizer, save_tokenizer

QUICK = FinetuneConfig(lr=3e-3, layer_decay=1.0, epochs=8, batch_size=16, device="cpu")

WORDS = (
    *("old", "young", "tired", "proud", "clever", "quiet"),
    *("farmer", "sailor", "baker", "judge", "miner", "weaver"),
    *("plough", "sail", "knead", "weigh", "dig", "spin"),
)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory, tokenizer_folder):
    """A discriminator with random weights and the tokenizer of the made-up language."""
    tokenizer = load_tokenizer(tokenizer_folder)
    torch.manual_seed(0)
    config = EncoderConfig(
        layers=2,
        hidden=32,
        heads=2,
        embedding=16,
        max_positions=64,
        vocab_size=tokenizer.get_vocab_size(),
        init_std=0.1,
    )
    folder = tmp_path_factory.mktemp("model") / "discriminator"
    export(Discriminator(Encoder(config)), folder, 0)
    save_tokenizer(tokenizer, folder, max_length=64)
    return folder


def sentence(rng: random.Random, words: int) -> list[str]:
    return [rng.choice(WORDS) for _ in range(words)]


def marked(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts with 'bread' in them, or with 'cargo', and which of the two."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        words, label = sentence(rng, rng.randint(2, 12)), rng.choice(("bread", "cargo"))
        words.insert(rng.randrange(len(words) + 1), label)
        rows.append((" ".join(words), label))
    return rows


@pytest.fixture(scope="session")
def reviews(tmp_path_factory):
    """A folder with train.csv and dev.csv for `classify`."""
    folder = tmp_path_factory.mktemp("reviews")
    for split, count, seed in (("train", 240, 1), ("dev", 60, 2)):
        lines = ["text,label", *(f"{text},{label}" for text, label in marked(count, seed))]
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def made_rows(kind: str, count: int, seed: int = 0) -> Features:
    """Random rows of a kind, of various lengths; one token determines the label."""
    rng = np.random.default_rng(seed)
    each = 3 if kind == "choice" else 1
    ids, first, target = [], [], []
    for _ in range(count):
        answer = int(rng.integers(3))
        for option in range(each):
            row = rng.integers(10, 40, rng.integers(8, 30)).astype(np.int32)
            middle = len(row) // 2
            row[[0, middle, -1]] = 2, 3, 3
            place = int(rng.integers(middle + 1, len(row) - 1))
            if kind == "choice":
                row[place] = 5 if option == answer else 6
            elif kind == "qa":
                row[place] = 5 if answer else row[place]
                span = (place, min(place + 1, len(row) - 2)) if answer else (0, 0)
                target.append((*span, int(not answer)))
            elif kind == "tag":
                tags = (row % 3).astype(np.int64)
                tags[row < 10] = IGNORE_INDEX
                target.append(tags)
            else:
                row[place] = 5 + answer
            ids.append(row)
            first.append(middle + 1)
        if kind in ("classify", "choice"):
            target.append(answer)
        elif kind == "regress":
            target.append(answer / 2)
    dtype = np.float32 if kind == "regress" else np.int64
    return Features(
        input_ids=ids,
        segment_start=np.array(first, np.int32),
        labels=target if kind == "tag" else np.array(target, dtype),
        example_index=np.repeat(np.arange(count), each),
        rows_per_example=each,
    )


@pytest.fixture
def made():
    """Rows without a tokenizer: `made("classify", 20)`, ids below 40, three labels or options."""
    return made_rows


@pytest.fixture
def quick() -> FinetuneConfig:
    """Settings with which the tiny encoder learns a made-up task in a second."""
    return QUICK


@pytest.fixture(scope="session")
def tuned(tmp_path_factory, model_folder, reviews):
    """The output of `finetune` after two seeds on `reviews`; read only."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("tuned") / "out"
    task = load_task("classify", reviews)
    finetune(str(model_folder), task, out, [0, 1], QUICK, Console(file=io.StringIO(), width=200))
    return out
