"""Phases of a run: what is read from the settings, which rows are trained on, and what resumes."""

import json
import shutil
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from electra.config import from_yaml, override, to_yaml
from electra.errors import UserError
from electra.models.encoder import Embeddings
from electra.text.prepare import prepare
from electra.text.shards import Shards
from electra.text.tokenizer import load_vocabulary
from electra.train import checkpoint, loop, pretrain
from electra.train.checkpoint import TrainState
from electra.train.compute_cost import recipe_cost
from electra.train.data import DataConfig, open_data, rows_at
from electra.train.evaluate import evaluate
from electra.train.metrics_log import read_metrics
from electra.train.phases import (
    Phase,
    build_phases,
    extend_positions_,
    phase_at,
    split_at_dropout,
)
from electra.train.pretrain import build_run, flops_per_row, phase_steps, resume, start
from electra.train.report import write_report
from electra.train.run_config import read_run_config
from electra.train.settings import PretrainConfig
from electra.train.step import Step


@pytest.fixture(autouse=True)
def _no_yardstick(monkeypatch):
    monkeypatch.setattr(pretrain, "measure_peak", lambda *_: 1e12)


@pytest.fixture(scope="session")
def both_lengths(corpus, tokenizer_folder, tmp_path_factory) -> Path:
    """Shards of rows of 16 and of 32 tokens."""
    out = tmp_path_factory.mktemp("both") / "shards"
    for n in (16, 32):
        options = {"length": n, "workers": 1, "held_out": 0.1}
        prepare([corpus], tokenizer=tokenizer_folder, out=out / str(n), **options)
    return out


@pytest.fixture
def staged(tiny, both_lengths):
    """16 tokens, from the middle of the run 32; a batch has 128 tokens throughout."""
    return override(
        tiny, [f"data.folder={both_lengths}", "data.seq_length=16,32@0.5", "data.batch_size=8"]
    )


@pytest.fixture
def rows_seen(monkeypatch) -> list[np.ndarray]:
    """The rows of each step of the runs that follow."""
    seen, original = [], Step.__call__

    def step(self, rows, rate):
        seen.append(rows.numpy().copy())
        return original(self, rows, rate)

    monkeypatch.setattr(Step, "__call__", step)
    return seen


def lines(out: Path, kind: str) -> list[dict]:
    return [line for line in read_metrics(out) if line["kind"] == kind]


@pytest.mark.parametrize(
    ("seq_length", "batch_size", "expected"),
    [
        (128, 64, [(0, 128, 64)]),
        ("128,512@0.9", 128, [(0, 128, 128), (0.9, 512, 32)]),
        ("64, 128@.3", 256, [(0, 64, 256), (0.3, 128, 128)]),
        (128, "128,256@0.2,512@0.5", [(0, 128, 128), (0.2, 128, 256), (0.5, 128, 512)]),
        (
            "64,128@0.5,256@0.75",
            "32,64@0.25,128@0.5",
            [(0, 64, 32), (0.25, 64, 64), (0.5, 128, 64), (0.75, 256, 32)],
        ),
        ("512,128@0.5", 4, [(0, 512, 4), (0.5, 128, 16)]),
    ],
)
def test_what_settings_mean(seq_length, batch_size, expected):
    assert list(build_phases(seq_length, batch_size)) == [Phase(*each) for each in expected]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seq_length=128,512", "neither a whole number nor a schedule"),
        ("seq_length=128@0.1,512@0.9", "neither"),
        ("seq_length=128,512@0.9,64@0.5", "neither"),
        ("seq_length=128,512@1.0", "neither"),
        ("seq_length=128,512@0", "neither"),
        ("seq_length=128;512", "neither"),
        ("seq_length=", "neither"),
        ("seq_length=128.5", "neither"),
        ("seq_length=128,0@0.5", "data.seq_length must be at least 1"),
        ("batch_size=8,-1@0.5", "data.batch_size must be at least 1"),
        ("seq_length=128,384@0.5", "not a whole number of rows of 384"),
    ],
)
def test_what_cannot_be_read_is_refused(setting, message):
    with pytest.raises(UserError, match=message):
        override(PretrainConfig(), [f"data.{setting}"])


def test_schedules_survive_yaml():
    config = override(PretrainConfig(), ["data.seq_length=128,512@0.9", "data.batch_size=64"])
    assert from_yaml(PretrainConfig, to_yaml(config), "there") == config
    assert config.data.batch_size == 64


def test_every_batch_divides_into_micro_batches():
    with pytest.raises(UserError, match="A batch of 6 rows does not divide into 4"):
        override(PretrainConfig(), ["data.batch_size=8,6@0.5", "train.grad_accumulation=4"])


def test_a_phase_begins_at_its_progress():
    phases = build_phases("128,512@0.9", 128)
    assert [phase_at(phases, p).seq_length for p in (0, 0.899, 0.9, 1)] == [128, 128, 512, 512]


def test_dropout_starts_a_phase():
    phases = split_at_dropout(build_phases("128,512@0.9", 128), 0.5)
    assert [tuple(phase) for phase in phases] == [
        (0, 128, 128, False),
        (0.5, 128, 128, True),
        (0.9, 512, 32, True),
    ]
    assert split_at_dropout(build_phases(128, 64), 0.0) == build_phases(128, 64)
    assert len(split_at_dropout(build_phases("64,128@0.5", 64), 0.5)) == 2


def test_a_run_that_starts_without_dropout(tiny, with_train, tmp_path, console, monkeypatch):
    """Both networks; the exported model has the dropout of the recipe throughout."""
    config = with_train(tiny, dropout_start=0.5, checkpoint_every=1, keep_last=99)
    config = override(config, ["model.dropout=0.2", "model.attention_dropout=0.1"])
    rates, original = [], Step.__call__

    def step(self, rows, rate):
        networks = (self.objective.generator, self.objective.discriminator)
        rates.append([network.encoder.dropout_rates for network in networks])
        return original(self, rows, rate)

    monkeypatch.setattr(Step, "__call__", step)
    straight = tmp_path / "straight"
    assert start(config, straight, console) == 0
    assert rates == 10 * [2 * [(0.0, 0.0)]] + 10 * [2 * [(0.2, 0.1)]]
    printed = " ".join(console.file.getvalue().split())
    assert "a step has 8 rows of 32 tokens without dropout, from 50% 8 rows of 32" in printed
    assert [line["dropout"] for line in lines(straight, "phase")] == [1]
    end = checkpoint.checkpoints(straight)[-1]
    for folder in (checkpoint.checkpoints(straight)[0], end):
        card = json.loads((folder / "discriminator" / "config.json").read_text())
        assert (card["hidden_dropout_prob"], card["attention_probs_dropout_prob"]) == (0.2, 0.1)
    for kept in (9, 10, 15):
        again = tmp_path / str(kept)
        shutil.copytree(straight, again)
        for later in checkpoint.checkpoints(again)[kept:]:
            shutil.rmtree(later)
        assert resume(again, console) == 0
        one, two = (
            load_file(f / "model.safetensors") for f in (end, again / "checkpoints" / end.name)
        )
        assert all(torch.equal(one[key], two[key]) for key in one)
        assert len(lines(again, "phase")) == 1


def test_dropout_that_starts_later_is_refused_without_dropout(tiny, tmp_path, console):
    config = override(
        tiny, ["train.dropout_start=0.5", "model.dropout=0", "model.attention_dropout=0"]
    )
    with pytest.raises(
        UserError, match=r"dropout_start=0\.5 has no effect, because the model has no"
    ):
        start(config, tmp_path / "run", console, given=["train.dropout_start"])
    with pytest.raises(UserError, match="dropout_start must be at least 0 and below 1"):
        override(tiny, ["train.dropout_start=1"])


BUDGETS = ("20steps", f"{21 * 128}tokens", "3e8flops")


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_rows_the_tokens_and_the_flops(
    budget, staged, both_lengths, with_train, tmp_path, console, rows_seen
):
    """Each length is read from its beginning, without gaps; counts are those of the phases."""
    out = tmp_path / "run"
    config = with_train(staged, budget=budget, checkpoint_every=1000)
    assert start(config, out, console) == 0
    config = read_run_config(out)
    state = checkpoint.read_state(checkpoint.checkpoints(out)[-1])
    counts = {n: sum(len(r) for r in rows_seen if r.shape[1] == n + 2) for n in (16, 32)}
    assert [len(r) for r in rows_seen] == [8] * (counts[16] // 8) + [4] * (counts[32] // 4)
    for length, count in counts.items():
        found = np.concatenate([r for r in rows_seen if r.shape[1] == length + 2])
        shards = Shards.open(both_lengths / str(length))
        assert np.array_equal(found, rows_at(shards, 0, count, config.train.seed))
    assert state.rows_of_length == counts
    assert state.rows == sum(counts.values())
    assert state.tokens == 128 * state.step
    flops = sum(n * flops_per_row(config, length) for length, n in counts.items())
    expected = [steps for _, steps in phase_steps(config)]
    assert expected == [counts[16] // 8, counts[32] // 4]
    if "flops" in budget:
        assert flops - 4 * flops_per_row(config, 32) < 3e8 <= flops
        half = counts[16] * flops_per_row(config, 16)
        assert half - 8 * flops_per_row(config, 16) < 1.5e8 <= half
    cost = recipe_cost(config)
    assert (cost["steps"], cost["tokens"]) == (state.step, state.tokens)
    assert cost["hardware"]["train"] == flops


def test_a_ramp_of_the_batch_reads_each_row_once(tiny, data_folder, tmp_path, console, rows_seen):
    config = override(tiny, ["data.batch_size=4,8@0.3,16@0.7"])
    assert start(config, tmp_path / "run", console) == 0
    assert [len(r) for r in rows_seen] == [4] * 6 + [8] * 8 + [16] * 6
    found = np.concatenate(rows_seen)
    assert np.array_equal(found, rows_at(Shards.open(data_folder), 0, len(found), 0))
    whole = start(tiny, tmp_path / "plain", console)
    assert whole == 0
    for name in ("learning_rate", "step"):  # the schedule does not depend on the batch
        rates = {k: {m["step"]: m[name] for m in lines(tmp_path / k, "train")} for k in
                 ("run", "plain")}  # fmt: skip
        assert all(rates["run"][step] == rate for step, rate in rates["plain"].items())


def test_resume_is_exact_before_at_and_after_a_boundary(
    staged, with_train, tmp_path, console, rows_seen
):
    config = with_train(staged, checkpoint_every=1, keep_last=99, report_every=1)
    config = override(config, ["optim.ema=0.9"])
    straight = tmp_path / "straight"
    start(config, straight, console)
    seen, end = list(rows_seen), checkpoint.checkpoints(straight)[-1]
    for kept in (9, 10, 15):
        again = tmp_path / str(kept)
        shutil.copytree(straight, again)
        for later in checkpoint.checkpoints(again)[kept:]:
            shutil.rmtree(later)
        del rows_seen[:]
        assert resume(again, console) == 0
        assert all(np.array_equal(a, b) for a, b in zip(seen[kept:], rows_seen, strict=True))
        for name in ("model", "optimizer", "ema", "random"):
            one, two = (
                load_file(each / f"{name}.safetensors")
                for each in (end, checkpoint.checkpoints(again)[-1])
            )
            assert all(torch.equal(one[key], two[key]) for key in one), name
        assert len(lines(again, "phase")) == 1
        for line in ("held_out", "train"):
            losses = [[m["loss"] for m in lines(out, line)] for out in (straight, again)]
            assert losses[0] == losses[1]


def test_metrics_name_the_phase(staged, with_train, tmp_path, console):
    """Each report and each validation belongs to one phase; validation has its length."""
    config = with_train(staged, report_every=4, validate_every=5, checkpoint_every=1000)
    shapes, original = [], loop.validate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            loop,
            "validate",
            lambda o, rows, *a: (shapes.append(rows.shape), original(o, rows, *a))[1],
        )
        start(config, tmp_path / "run", console)
    train = [
        (m["step"], m["seq_length"], m["batch_size"]) for m in lines(tmp_path / "run", "train")
    ]
    first = [(step, 16, 8) for step in (4, 5, 8, 10)]
    assert train == [*first, *((step, 32, 4) for step in (12, 15, 16, 20))]
    held_out = [(m["step"], m["seq_length"]) for m in lines(tmp_path / "run", "held_out")]
    assert held_out == [(5, 16), (10, 16), (15, 32), (20, 32)]
    assert [shape[1] - 2 for shape in shapes] == [16, 16, 32, 32]
    (phase,) = lines(tmp_path / "run", "phase")
    assert (phase["step"], phase["seq_length"], phase["batch_size"]) == (10, 32, 4)
    assert phase["kernels"] == "plain modules"
    printed = console.file.getvalue()
    assert "a step has 8 rows of 16 tokens, from 50% 4 rows of 32 tokens" in printed
    assert "Step 10: from here a step has 4 rows of 32 tokens. Kernels: plain modules." in printed
    _, page = write_report([tmp_path / "run"])
    assert "4 rows of 32 tokens from step 10" in page.read_text()
    assert "No sample sentences" not in page.read_text()
    _, found = evaluate(tmp_path / "run", Path(config.data.folder), config.train.validate_rows)
    assert found["loss"] == pytest.approx(lines(tmp_path / "run", "held_out")[-1]["loss"], rel=1e-5)


def test_the_speed_of_a_phase_leaves_out_its_preparation(staged, tmp_path, console, monkeypatch):
    original = loop.begin_phase

    def slow(run, phase):
        time.sleep(1)
        original(run, phase)

    monkeypatch.setattr(loop, "begin_phase", slow)
    start(staged, tmp_path / "run", console)
    after = next(line for line in lines(tmp_path / "run", "train") if line["step"] > 10)
    assert after["tokens_per_second"] > (after["step"] - 10) * 128


def test_a_budget_in_time_reaches_every_phase(staged, with_train, tmp_path, console):
    config = with_train(staged, budget="1s", validate_every=10**6, checkpoint_every=10**6)
    assert start(config, tmp_path / "run", console) == 0
    state = checkpoint.read_state(checkpoint.checkpoints(tmp_path / "run")[-1])
    assert 1 <= state.seconds < 3
    (phase,) = lines(tmp_path / "run", "phase")
    assert state.rows_of_length == {16: 8 * phase["step"], 32: 4 * (state.step - phase["step"])}


def test_every_phase_is_tried_before_the_first_step(staged, tmp_path, console, monkeypatch):
    """The last one first; at a boundary the next one again, because its graph was freed."""
    tried, original = [], loop.dry_run

    def dry_run(run, rows):
        tried.append((run.state.step, *rows.shape, run.step.micro_batch))
        original(run, rows)

    monkeypatch.setattr(loop, "dry_run", dry_run)
    start(staged, tmp_path / "run", console)
    assert tried == [(0, 4, 34, 4), (0, 8, 18, 8), (10, 4, 34, 4)]


def opened(config, out: Path, console):
    """A run before its first step."""
    shards = open_data(config.data, config.model.max_positions)
    vocab = load_vocabulary(shards.tokenizer)
    config = replace(config, model=replace(config.model, vocab_size=vocab.size))
    out.mkdir()
    shutil.copytree(shards.tokenizer, out / "tokenizer")
    return build_run(config, out, shards, vocab, console)


def test_another_phase_frees_the_graph(staged, tmp_path, console):
    with opened(staged, tmp_path / "run", console) as run:
        run.graphed_step = lambda rows, rate: rows
        run.set_phase(run.phases[1])
        assert run.graphed_step is None
        assert run.step.micro_batch == 4
        assert run.held_out.shape[1] == 34


def test_the_graph_of_a_phase_is_gone_before_the_next_is_captured(
    staged, tmp_path, console, monkeypatch
):
    graphs = []

    class Graph:
        def __init__(self, step):
            self.step = step

        def __call__(self, rows, rate):
            return self.step(rows, rate)

    def dry_run(run, rows):
        assert not any(graph() for graph in graphs)
        run.graphed_step = Graph(run.step)
        graphs.append(weakref.ref(run.graphed_step))

    monkeypatch.setattr(loop, "dry_run", dry_run)
    assert start(staged, tmp_path / "run", console) == 0
    assert len(graphs) == 3


def test_a_lack_of_memory_in_a_later_phase_shows_at_the_start(
    staged, tmp_path, console, monkeypatch
):
    original = Step.backward

    def backward(self, batch, *rest):
        if batch.ids.shape[1] == 32:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(self, batch, *rest)

    monkeypatch.setattr(Step, "backward", backward)
    with pytest.raises(UserError, match=r"4 rows of 32 tokens.*train\.grad_accumulation=2"):
        start(staged, tmp_path / "run", console)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "known", "copied"),
    [
        (["generator.tie=embeddings"], 0, 12),
        (["generator.tie=none"], 0, 12),
        (["generator.tie=gdes"], 0, 12),
        ([], 20, 20),
        ([], 64, 30),
        (["model.init=local"], 0, 30),
    ],
)
def test_untrained_positions(settings, known, copied, tiny, make_step):
    """Moments become copies from row 12 on, weights and averages from `copied` on."""
    step, (rows, *_) = make_step(override(tiny, ["optim.ema=0.9", *settings]))
    short = torch.cat([rows[:, :12], rows[:, -2:].clamp(max=12)], 1)
    for _ in range(3):
        step(short, 1e-3)
    tables = [m.position.weight for m in step.objective.modules() if isinstance(m, Embeddings)]
    assert len(tables) == (2 if {"generator.tie=none", "generator.tie=gdes"} & {*settings} else 1)
    held = []
    for table in tables:
        (average,) = step.ema.averages_of(table)
        held += [(tensor, copied) for tensor in (table, average)]
        held += [(moment, 12) for moment in step.optimizer.moments(table).values()]
        assert not held[-1][0][12:].any()  # no gradient has reached them
    before = [tensor.detach().clone() for tensor, _ in held]
    extend_positions_(step, 12, 30, known)
    for (tensor, first), old in zip(held, before, strict=True):
        expected = old.numpy().copy()
        for row in range(first, 30):
            expected[row] = expected[row % first]
        np.testing.assert_array_equal(tensor.detach().numpy(), expected)
        assert old[:12].any()


def test_positions_are_extended_at_the_boundary(staged, tmp_path, console, monkeypatch):
    calls, original = [], loop.extend_positions_

    def extend(step, *sizes):
        calls.append(sizes)
        original(step, *sizes)

    monkeypatch.setattr(loop, "extend_positions_", extend)
    start(staged, tmp_path / "up", console)
    assert calls == [(16, 32, 0)]
    start(override(staged, ["data.seq_length=32,16@0.5"]), tmp_path / "down", console)
    assert calls == [(16, 32, 0)]


def test_losses_of_different_lengths_are_not_compared(
    staged, with_train, tmp_path, console, monkeypatch
):
    losses, original = iter([5.0, 2.0, 4.0, 3.0, 9.0]), loop.validate
    monkeypatch.setattr(loop, "validate", lambda *a: original(*a) | {"loss": next(losses)})
    config = with_train(staged, checkpoint_every=4, validate_every=99, keep_last=1)
    start(config, tmp_path / "run", console)
    state = checkpoint.read_state(checkpoint.checkpoints(tmp_path / "run")[-1])
    assert state.best == {"step": 16, "loss": 3.0, "seq_length": 32}


def test_a_checkpoint_of_an_earlier_version_has_one_length():
    assert TrainState(rows=24, tokens=24 * 32).rows_of_length == {32: 24}
    assert TrainState().rows_of_length == {}


def test_data_that_is_not_there_is_refused(tiny, both_lengths, data_folder, tmp_path):
    def check(folder, length, message, positions=64):
        with pytest.raises(UserError, match=message):
            open_data(DataConfig(folder=str(folder), seq_length=length), positions)

    check(data_folder, "16,32@0.5", r"rows of 32 tokens and .* expects 16.*--length 16,32")
    check(both_lengths, "32,64@0.5", r"rows of 16 and 32 tokens and .* expects 64")
    check(both_lengths, "16,32@0.5", "position table of 24", positions=24)
    check(tmp_path, "16,32@0.5", "not a folder of token shards")
    assert open_data(DataConfig(folder=str(both_lengths), seq_length=32), 64).length == 32
    other = tmp_path / "other"
    shutil.copytree(both_lengths, other)
    index = other / "32" / "index.json"
    index.write_text(index.read_text().replace('"tokenizer": "', '"tokenizer": "0', 1))
    check(other, "16,32@0.5", "another tokenizer")


def test_other_data_of_a_later_phase_is_refused_on_resume(
    staged, both_lengths, corpus, tokenizer_folder, tmp_path, console
):
    start(staged, tmp_path / "run", console)
    other = tmp_path / "other"
    shutil.copytree(both_lengths, other)
    shutil.rmtree(other / "32")
    options = {"length": 32, "workers": 1, "held_out": 0.1, "seed": 9}
    prepare([corpus], tokenizer=tokenizer_folder, out=other / "32", **options)
    with pytest.raises(UserError, match="is not the data that"):
        resume(tmp_path / "run", console, other)


def test_what_needs_one_length_says_so(staged):
    with pytest.raises(
        UserError, match=r"A bench takes one.*data\.seq_length=32 data\.batch_size=4"
    ):
        staged.data.single_phase("A bench")


def test_a_length_of_thousands_of_digits_is_refused():
    with pytest.raises(UserError, match="neither a whole number nor a schedule"):
        build_phases("9" * 5000, 8)
