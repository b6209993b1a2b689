"""A tiny study: small networks, a made-up task and made-up pairs of sentences."""

import json
import random
from pathlib import Path

import pytest

SMALL = (
    *("data.seq_length=32", "data.batch_size=8", "train.device=cpu", "train.validate_rows=16"),
    *("model.layers=1", "model.hidden=32", "model.embedding=16"),
)
TUNING = ("--tuning", "lr=3e-3", "--tuning", "batch_size=16", "--tuning", "epochs=1")
PEOPLE = ("farmer", "sailor", "baker", "judge", "miner", "weaver")
PLACES = ("field", "harbour", "oven", "court", "shaft", "loom")


@pytest.fixture(scope="session")
def labels(tmp_path_factory) -> Path:
    """A folder with train.csv and dev.csv for `classify`: is it a person or a place?"""
    folder = tmp_path_factory.mktemp("words")
    rng = random.Random(0)
    for split, count in (("train", 64), ("dev", 24)):
        lines = ["text,label"]
        for number in range(count):
            kind = rng.choice(("person", "place"))
            word = rng.choice(PEOPLE if kind == "person" else PLACES)
            lines.append(f"{split} {number} the old {word} was closed,{kind}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def blimp(tmp_path_factory) -> Path:
    """A folder like BLiMP's: two files of eight pairs."""
    folder = tmp_path_factory.mktemp("blimp")
    for paradigm in ("order", "place"):
        lines = []
        for who, where in zip(PEOPLE, PLACES, strict=True):
            good = f"the old {who} went to the {where} ."
            bad = f"the {who} old went the to {where} ." if paradigm == "order" else f"{good} the"
            pair = {"sentence_good": good, "sentence_bad": bad}
            lines.append(json.dumps(pair | {"linguistics_term": paradigm, "UID": paradigm}))
        (folder / f"{paradigm}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def command(data_folder, labels, blimp, tmp_path):
    """Arguments of `electra study`: about 20 steps per arm, two fine-tuning seeds, and BLiMP."""

    def words(
        name: str,
        *more: object,
        budget: str = "3e9flops",
        score: str = "both",
        out: str = "study",
    ) -> tuple:
        scores: tuple = ()
        if score in ("task", "both"):
            scores += ("--task", "classify", "--task-data", labels, "--tuning-seeds", 2, *TUNING)
        if score in ("blimp", "both"):
            scores += ("--blimp", blimp)
        place = ("--data", data_folder, "--out", tmp_path / out, "--seeds", 1)
        if name == "tying" and "--arms" not in more:
            place += ("--arms", "none,embeddings,all")  # those of the paper
        return ("study", name, *SMALL, *place, "--budget", budget, *scores, *more)

    return words
