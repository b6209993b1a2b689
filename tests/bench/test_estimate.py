"""How long a whole run would take."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from electra.bench import estimate as module
from electra.bench.estimate import estimate_run, format_duration, total_steps
from electra.config import override
from electra.errors import UserError
from electra.train.pretrain import flops_per_row, resolve_data


def test_the_measured_run_validates_and_saves(tiny, console):
    config = override(
        tiny, ["train.budget=1000steps", "train.validate_every=5", "train.checkpoint_every=10"]
    )
    found = estimate_run(config, "2s", console)
    assert "The model is in" not in console.file.getvalue()  # it is deleted
    assert found.steps > 10
    assert 2 <= found.seconds < 20
    assert found.validations == (found.steps - 1) // 5
    assert found.checkpoints == (found.steps - 1) // 10
    assert found.total_steps == 1000
    assert found.total_seconds == pytest.approx(1000 * found.seconds / found.steps)
    tokens = found.steps * config.data.batch_size * config.data.seq_length
    assert found.tokens_per_second == pytest.approx(tokens / found.seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (185, "3 min"),
        (3599, "1 h 0 min"),
        (4080, "1 h 8 min"),
    ],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


def test_the_total_steps_of_a_budget(tiny):
    def steps(budget: str) -> int:
        return total_steps(replace(tiny, train=replace(tiny.train, budget=budget)))

    each = tiny.data.batch_size * tiny.data.seq_length
    assert steps("70steps") == 70
    assert steps(f"{10 * each + 1}tokens") == 11
    assert steps("2e12flops") == pytest.approx(2 * steps("1e12flops"), abs=1)
    with pytest.raises(UserError, match="a time already"):
        steps("3min")


def test_flops_are_those_of_the_datas_vocabulary(tiny, console):
    """A recipe does not know its vocabulary before it sees the data."""
    assert tiny.model.vocab_size == 0
    filled = resolve_data(tiny)[0]
    each = filled.data.batch_size * flops_per_row(filled)
    found = estimate_run(override(tiny, [f"train.budget={25 * each}flops"]), "1s", console)
    assert found.total_steps == 25


def test_what_comes_after_the_last_step_is_not_in_between(tiny, console, monkeypatch):
    state = SimpleNamespace(step=20, seconds=4.0, tokens=100)
    validated = [{"kind": "held_out", "step": step} for step in (5, 10, 15, 20)]
    monkeypatch.setattr(module, "start", lambda *_, **__: 0)
    monkeypatch.setattr(module, "checkpoints", lambda _: ["last"])
    monkeypatch.setattr(module, "read_state", lambda _: state)
    monkeypatch.setattr(
        module, "read_metrics", lambda _: [{"kind": "train", "step": 5}, *validated]
    )
    config = override(tiny, ["train.budget=1000steps", "train.checkpoint_every=10"])
    found = estimate_run(config, "2s", console)
    assert (found.validations, found.checkpoints) == (3, 1)
    assert (found.total_seconds, found.tokens_per_second) == (200.0, 25.0)
