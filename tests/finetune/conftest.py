"""A tiny encoder and made-up tasks that it can learn in seconds."""

import random

import pytest
import torch

from electra.hub.folders import export
from electra.models.electra import Discriminator
from electra.models.encoder import Encoder, EncoderConfig
from electra.text.tokenizer import load_tokenizer, save_tokenizer

WORDS = (
    "old young tired proud clever quiet farmer sailor baker judge miner weaver plough sail knead "
    "weigh dig spin field harbour oven court shaft loom bread cargo verdict copper linen barley"
).split()


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
        positions=64,
        vocab_size=tokenizer.get_vocab_size(),
        init_std=0.1,
    )
    folder = tmp_path_factory.mktemp("model") / "discriminator"
    export(Discriminator(Encoder(config)), folder, 0)
    save_tokenizer(tokenizer, folder, max_length=64)
    return folder


def sentence(rng: random.Random, words: int) -> list[str]:
    return [rng.choice(WORDS[:18]) for _ in range(words)]


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
