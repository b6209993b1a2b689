"""Small jobs, their undisturbed results, and the count of faults that were survived."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.torture.jobs import Job, read_export, read_finetuned, read_run, tree

from electra.config import to_yaml


@pytest.fixture
def many(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """The count for the short form, or that of `--torture`."""
    long = request.config.getoption("--torture")
    return lambda short, long_count: long_count if long else short


@pytest.fixture
def survived(record_property) -> Callable[[], None]:
    """Call it after each fault that was survived; the terminal shows the sum."""
    return lambda: record_property("fault survived", 1)


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers that are the same each time in the short form."""
    seed = random.SystemRandom().randrange(10**6) if request.config.getoption("--torture") else 0
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture(scope="session")
def jobs(
    corpus, tokenizer_folder, data_folder, tiny, finished, model_folder, reviews, tmp_path_factory
) -> dict[str, Job]:
    """One job for each command that writes."""
    recipe = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    train = replace(tiny.train, budget="12steps", checkpoint_every=4, keep_last=2, report_every=2)
    optim = replace(tiny.optim, ema=0.9)
    recipe.write_text(to_yaml(replace(tiny, train=train, optim=optim)))
    text = recipe.with_name("text.txt")
    text.write_text(corpus.read_text(encoding="utf-8")[:60_000], encoding="utf-8")
    prepare = ["prepare", text, "--tokenizer", tokenizer_folder, "--length", "32"]
    pretrain = ["pretrain", recipe, "--data", data_folder, "--resume"]
    finetune = ["finetune", model_folder, "classify", "--data", reviews, "--seeds", "3"]
    found = [
        Job("prepare", [*prepare, "--workers", "1", "--held-out", "0.1"], tree),
        Job("pretrain", [*pretrain], read_run),
        Job("finetune", [*finetune, "epochs=1", "device=cpu"], read_finetuned),
        Job("export", ["export", finished, "--format", "transformers"], read_export),
    ]
    return {
        job.name: replace(job, arguments=[str(argument) for argument in job.arguments])
        for job in found
    }


@pytest.fixture(scope="session")
def undisturbed(jobs, tmp_path_factory) -> Callable[[str], tuple[Path, Any]]:
    """The folder and the result of a job that nothing disturbed."""
    known: dict[str, tuple[Path, Any]] = {}

    def result(name: str) -> tuple[Path, Any]:
        if name not in known:
            out = tmp_path_factory.mktemp(name) / "here" / "out"
            jobs[name].finish(out)
            known[name] = out, jobs[name].read(out)
        return known[name]

    return result
