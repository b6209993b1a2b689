"""Budgets in steps, tokens, FLOPs and time."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from electra.errors import UserError
from electra.models.flops import row_flops, workloads_of
from electra.objectives.corrupt import max_masked
from electra.optim.schedule import learning_rate
from electra.text.tokenizer import load_vocabulary
from electra.train import checkpoint
from electra.train.budget import Budget, parse_budget
from electra.train.data import open_data
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import resume, start
from electra.train.settings import PretrainConfig


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("10000steps", 10_000, "steps"),
        ("1step", 1, "steps"),
        ("1e9tokens", 1e9, "tokens"),
        ("2.5e+6 tokens", 2.5e6, "tokens"),
        ("1e16flops", 1e16, "flops"),
        ("5e16FLOPs", 5e16, "flops"),
        ("1e16 flops", 1e16, "flops"),
        ("3FLOP", 3, "flops"),
        ("90s", 90, "seconds"),
        ("90sec", 90, "seconds"),
        ("25min", 1500, "seconds"),
        ("1.5h", 5400, "seconds"),
        (" 2H ", 7200, "seconds"),
        ("1d", 86_400, "seconds"),
    ],
)
def test_read(text, amount, unit):
    assert parse_budget(text) == Budget(amount, unit)


@pytest.mark.parametrize(
    "text",
    [
        *("", "10", "steps", "-5steps", "0steps", "0.0h", "1e-3h", "5weeks", "h5", "nanh", "5 5h"),
        *(
            "flops",
            "1e16",
            "0flops",
            "-1e16flops",
            "1e16flop/s",
            "1e16pflops",
            "1e999flops",
            "1eflops",
        ),
    ],
)
def test_an_invalid_budget_is_refused_with_examples(text):
    with pytest.raises(UserError, match=r"is not a budget: .*1e16flops, 25min"):
        parse_budget(text)


@pytest.mark.parametrize(
    ("unit", "spent"), [("steps", 5), ("tokens", 20), ("flops", 60), ("seconds", 80.0)]
)
def test_progress_is_the_share_of_its_own_unit(unit, spent):
    now = {"steps": 5, "tokens": 20, "flops": 60, "seconds": 80.0}
    assert Budget(100, unit).progress(**now) == spent / 100
    assert Budget(2, unit).progress(**now) == 1  # never beyond the end
    assert Budget(spent, unit).progress(**now) == 1


@pytest.mark.parametrize(
    ("budget", "steps"),
    [("7steps", 7), ("100tokens", 10), ("101tokens", 11), ("5000flops", 5), ("1flop", 1)],
)
def test_steps_until_it_is_spent(budget, steps):
    assert parse_budget(budget).steps(tokens_per_step=10, flops_per_step=1000) == steps


def test_a_time_budget_has_no_number_of_steps():
    assert parse_budget("2h").steps(tokens_per_step=10, flops_per_step=1000) is None


def with_steps(config: PretrainConfig, steps: float) -> PretrainConfig:
    """A budget of that many steps in FLOPs, by the count of the configuration alone."""
    model = replace(config.model, vocab_size=tiny_vocabulary(config))
    length = config.data.seq_length
    slots = max_masked(length, config.objective.mask_rate, "round")
    works = workloads_of(config.objective.kind, model, config.generator, length, slots)
    row = row_flops(works, length)
    flops = steps * config.data.batch_size * row
    loop = replace(config.train, budget=f"{flops:.6e}flops", checkpoint_every=4, report_every=1)
    return replace(config, train=loop)


@pytest.fixture
def eleven(tiny):
    """A little more than ten steps."""
    return with_steps(tiny, 10.5)


def tiny_vocabulary(config: PretrainConfig) -> int:
    return load_vocabulary(open_data(config.data, config.model.max_positions).tokenizer).size


def rates(folder: Path) -> list[float]:
    return [line["learning_rate"] for line in read_metrics(folder) if line["kind"] == "train"]


def test_a_run_ends_when_its_flops_are_spent(eleven, tmp_path, console):
    """At the first step beyond, and its schedule runs from the beginning to the end."""
    assert start(eleven, tmp_path / "run", console) == 0
    found = rates(tmp_path / "run")
    assert len(found) == 11
    assert checkpoint.checkpoints(tmp_path / "run")[-1].name.endswith("11")
    for step, rate in enumerate(found):
        assert rate == pytest.approx(learning_rate(step / 10.5, 10.5, eleven.optim), rel=1e-4)


def test_a_budget_in_flops_resumes(eleven, tmp_path, console):
    """Taken up at step 8, it ends at the same step with the same rates."""
    start(eleven, tmp_path / "straight", console)
    shutil.copytree(tmp_path / "straight", tmp_path / "again")
    last = checkpoint.checkpoints(tmp_path / "again")
    shutil.rmtree(last[-1])
    assert resume(tmp_path / "again", console) == 0
    assert [c.name for c in checkpoint.checkpoints(tmp_path / "again")] == [c.name for c in last]
    assert rates(tmp_path / "again") == rates(tmp_path / "straight")


def test_the_objective_decides_what_a_step_costs(tiny, tmp_path, console):
    """At equal compute, a network without a generator takes more steps."""
    alone = replace(tiny, objective=replace(tiny.objective, kind="mlm"))
    assert start(with_steps(alone, 5.5), tmp_path / "run", console) == 0
    assert len(rates(tmp_path / "run")) == 6
    both = replace(tiny, train=with_steps(alone, 5.5).train)
    assert start(both, tmp_path / "both", console) == 0
    assert len(rates(tmp_path / "both")) < 6
