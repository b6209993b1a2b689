"""The loop: a stored curve, accumulation, the dry run, budgets, what stops it and what it tells."""

import json
import math
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from electra.config import override
from electra.errors import UserError
from electra.objectives.rtd import ReplacedTokenDetection
from electra.text.tokenizer import load_vocabulary
from electra.train import checkpoint, loop, metric_accumulator, pretrain
from electra.train.data import open_data, rows_at
from electra.train.evaluate import evaluate
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import build_run, start
from electra.train.run_config import read_run_config
from electra.train.step import Step

CURVE = Path(__file__).with_name("curve.json")


@pytest.fixture(autouse=True)
def _no_yardstick(monkeypatch):
    """Measuring the hardware's peak takes longer than these runs."""
    monkeypatch.setattr(pretrain, "measure_peak", lambda *_: 1e12)


def trained(config, out: Path, console) -> dict[str, torch.Tensor]:
    """The weights at the end of a run."""
    assert start(config, out, console) == 0
    return load_file(checkpoint.checkpoints(out)[-1] / "model.safetensors")


def metrics_of(out: Path, kind: str = "train") -> list[dict]:
    return [line for line in read_metrics(out) if line["kind"] == kind]


def without_dropout(config, **objective):
    return replace(
        config,
        model=replace(config.model, dropout=0.0, attention_dropout=0.0),
        objective=replace(config.objective, **objective),
    )


def opened_run(config, out: Path, console):
    """A run before its first step, as `start` would open it."""
    shards = open_data(config.data, config.model.max_positions)
    vocab = load_vocabulary(shards.tokenizer)
    config = replace(config, model=replace(config.model, vocab_size=vocab.size))
    out.mkdir()
    shutil.copytree(shards.tokenizer, out / "tokenizer")
    rows = torch.from_numpy(rows_at(shards, 0, config.data.batch_size, config.train.seed))
    return build_run(config, out, shards, vocab, console), rows


def test_the_stored_curve(tiny, with_train, tmp_path, console):
    """Twenty steps, loss by loss, as they were when curve.json was written.

    A change that is meant to change the training deletes the file and runs this test, which then
    writes it anew and fails once; the difference belongs into the commit.
    """
    config = with_train(tiny, report_every=1, validate_every=20, checkpoint_every=20)
    start(config, tmp_path / "run", console)
    found = {
        name: [round(line[name], 6) for line in metrics_of(tmp_path / "run")]
        for name in ("mlm_loss", "detection_loss", "gradient_norm")
    }
    if not CURVE.exists():
        CURVE.write_text(json.dumps(found, indent=1) + "\n")
        pytest.fail(f"{CURVE.name} was not there and has been written")
    stored = json.loads(CURVE.read_text())
    assert len(found["mlm_loss"]) == 20
    for name, values in stored.items():
        assert found[name] == pytest.approx(values, rel=1e-3), name


def test_the_average_of_the_weights(tiny, tmp_path, console):
    """Validation and the exported folders use it; training goes on with the weights themselves."""
    with_ema = replace(tiny, optim=replace(tiny.optim, ema=0.9))
    plain = trained(tiny, tmp_path / "plain", console)
    weights = trained(with_ema, tmp_path / "ema", console)
    for name, tensor in plain.items():
        assert torch.equal(weights[name], tensor), name
    assert metrics_of(tmp_path / "plain")[-1]["loss"] == metrics_of(tmp_path / "ema")[-1]["loss"]
    last = checkpoint.checkpoints(tmp_path / "ema")[-1]
    averages = load_file(last / "ema.safetensors")
    for name in ("discriminator", "generator"):
        exported = load_file(last / name / "model.safetensors")
        key = f"{name}.encoder.layers.0.up_proj.bias"
        assert torch.equal(
            exported["electra.encoder.layer.0.intermediate.dense.bias"], averages[key]
        )
        assert not torch.equal(averages[key], weights[key])
    held_out = metrics_of(tmp_path / "ema", "held_out")[-1]
    assert held_out["loss"] != metrics_of(tmp_path / "plain", "held_out")[-1]["loss"]
    # `evaluate` measures what is exported
    _, found = evaluate(tmp_path / "ema", Path(tiny.data.folder), tiny.train.validate_rows)
    assert found["loss"] == pytest.approx(held_out["loss"], rel=1e-5)


def test_a_new_stage_begins_a_new_average(tiny, with_train, tmp_path, console):
    """The discriminator has taken over the generator's weights, far from its own average."""
    config = override(
        with_train(tiny, checkpoint_every=11, keep_last=9),
        ["objective.kind=two-stage", "generator.tie=none", "generator.width=1", "optim.ema=0.999"],
    )
    assert start(config, tmp_path / "run", console) == 0
    first, last = checkpoint.checkpoints(tmp_path / "run")
    assert load_file(first / "ema.safetensors")["updates"].item() == 1
    assert load_file(last / "ema.safetensors")["updates"].item() == 10


@pytest.mark.parametrize("pieces", [2, 4])
def test_micro_batches_give_the_same_weights(pieces, tiny, with_train, tmp_path, console):
    """Rows of different lengths; at this temperature each sample is the best guess."""
    config = with_train(tiny, budget="8steps", report_every=8)
    config = without_dropout(config, temperature=1e-6)
    whole = trained(config, tmp_path / "whole", console)
    parts = trained(with_train(config, grad_accumulation=pieces), tmp_path / "parts", console)
    for name, weights in whole.items():
        torch.testing.assert_close(parts[name], weights, atol=2e-5, rtol=1e-3, msg=name)
    for name in ("mlm_loss", "detection_loss", "replaced_rate"):
        (wanted,), (found,) = (metrics_of(tmp_path / run) for run in ("whole", "parts"))
        assert found[name] == pytest.approx(wanted[name], rel=1e-4), name


def test_the_dry_run_changes_nothing(tiny, tmp_path, console):
    opening, rows = opened_run(tiny, tmp_path / "run", console)
    with opening as run:
        torch.rand(3)
        random = torch.get_rng_state()
        weights = {n: p.detach().clone() for n, p in run.objective.named_parameters()}
        loop.dry_run(run, rows)
        assert torch.equal(torch.get_rng_state(), random)
        for name, p in run.objective.named_parameters():
            assert torch.equal(p, weights[name]), name
            assert p.grad is None, name
            assert run.step.optimizer.state[p], name  # memory that the steps need is there
            for moment in run.step.optimizer.moments(p).values():
                assert not moment.any(), name
        assert run.state.step == run.state.rows == 0
    assert metrics_of(tmp_path / "run") == []


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 9000000000 bytes."
        ),
        MemoryError(),
    ],
)
def test_out_of_memory_is_reported_at_the_start(error, tiny, tmp_path, console, monkeypatch):
    def forward(*_):
        raise error

    monkeypatch.setattr(ReplacedTokenDetection, "forward", forward)
    with pytest.raises(
        UserError, match=r"batch of 8 rows does not fit.*train\.grad_accumulation=2"
    ):
        start(tiny, tmp_path / "run", console)
    assert not (tmp_path / "run").exists()  # so that the advice can be followed


def test_kernels_that_cannot_be_built_are_reported_at_the_start(
    tiny, tmp_path, console, monkeypatch
):
    kind = type("OutOfResources", (Exception,), {"__module__": "triton.runtime.errors"})

    def forward(*_):
        raise kind("out of resource: shared memory, Required: 237640, Hardware limit: 101376")

    monkeypatch.setattr(ReplacedTokenDetection, "forward", forward)
    with pytest.raises(UserError, match=r"shared memory.*train\.fused_kernels=off"):
        start(tiny, tmp_path / "run", console)
    assert not (tmp_path / "run").exists()


def test_other_failures_of_the_dry_run_are_not_hidden(tiny, tmp_path, console, monkeypatch):
    def forward(*_):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(ReplacedTokenDetection, "forward", forward)
    with pytest.raises(RuntimeError, match="shapes"):
        start(tiny, tmp_path / "run", console)


@pytest.mark.parametrize(
    ("pieces", "advice"),
    [
        (3, r"batch of 3 rows.*train\.grad_accumulation=9"),
        (9, r"Not even one row.*train\.activation_checkpointing"),
    ],
)
def test_the_advice_for_memory_can_be_followed(
    pieces, advice, tiny, with_train, tmp_path, console, monkeypatch
):
    def forward(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(ReplacedTokenDetection, "forward", forward)
    config = with_train(
        replace(tiny, data=replace(tiny.data, batch_size=9)), grad_accumulation=pieces
    )
    with pytest.raises(UserError, match=advice):
        start(config, tmp_path / "run", console)


def broken_at(step: int, monkeypatch) -> None:
    """Let a weight become NaN in the forward pass of a step."""
    original, count = Step.__call__, iter(range(1, 1000))

    def poisoned(self, rows, rate):
        if next(count) == step:
            with torch.no_grad():
                self.objective.discriminator.dense.weight[0, 0] = math.nan
        return original(self, rows, rate)

    monkeypatch.setattr(Step, "__call__", poisoned)


def test_non_finite_metrics_stop_the_run_and_are_never_saved(
    tiny, with_train, tmp_path, console, monkeypatch
):
    config = with_train(tiny, budget="40steps", report_every=1000, validate_every=1000)
    broken_at(15, monkeypatch)
    out = tmp_path / "run"
    with pytest.raises(
        UserError, match=r"step 20: held-out loss is not a finite.*step-00000010.*lr"
    ):
        start(config, out, console)
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step-00000010"]
    for part in ("model", "optimizer"):
        saved = load_file(out / "checkpoints" / "step-00000010" / f"{part}.safetensors")
        assert all(t.isfinite().all() for t in saved.values())
    monkeypatch.undo()
    assert pretrain.resume(out, console) == 0


def test_non_finite_metrics_stop_the_run_at_the_next_report(
    tiny, with_train, tmp_path, console, monkeypatch
):
    config = with_train(tiny, budget="40steps", validate_every=100, checkpoint_every=100)
    broken_at(3, monkeypatch)
    with pytest.raises(UserError, match=r"step 15: .* last 13 steps .*No checkpoint was written"):
        start(config, tmp_path / "run", console)


def test_non_finite_metrics_are_not_saved_on_a_signal(tiny, tmp_path, console, monkeypatch):
    broken_at(2, monkeypatch)
    original, count = Step.__call__, iter(range(1, 1000))

    def last(*given):
        if next(count) == 3:
            signal.raise_signal(signal.SIGTERM)
        return original(*given)

    monkeypatch.setattr(Step, "__call__", last)
    with pytest.raises(UserError, match=r"step 3: a weight is not.*No checkpoint was written"):
        start(tiny, tmp_path / "run", console)


def spoil_gradients(steps: range, monkeypatch, value=math.nan) -> list:
    """Let a gradient be NaN in these steps; returns the weights before and after each step."""
    sum_gradients, call = Step.sum_gradients, Step.__call__
    count, seen = iter(range(1, 1000)), []

    def spoiled(self):
        sum_gradients(self)
        if next(count) in steps:
            next(iter(self.objective.discriminator.parameters())).grad[0, 0] = value

    def weights(self) -> torch.Tensor:
        moments = [self.optimizer.moments(p).values() for p in self.objective.parameters()]
        held = [*self.objective.parameters(), *(m for each in moments for m in each)]
        return torch.cat([t.detach().flatten() for t in held])

    def watched(self, *given):
        before = weights(self)
        sums = call(self, *given)
        seen.append((before, weights(self)))
        return sums

    monkeypatch.setattr(Step, "sum_gradients", spoiled)
    monkeypatch.setattr(Step, "__call__", watched)
    return seen


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_and_counted(
    value, tiny, tmp_path, console, monkeypatch
):
    seen = spoil_gradients(range(7, 9), monkeypatch, value)
    assert start(tiny, tmp_path / "run", console) == 0
    for number, (before, after) in enumerate(seen, 1):
        assert torch.equal(before, after) == (number in (7, 8))
        assert after.isfinite().all()
    lines = read_metrics(tmp_path / "run")
    (event,) = [line for line in lines if "skipped_steps" in line]
    assert (event["step"], event["skipped_steps"]) == (10, 2)
    assert "2 of the last 5 steps" in event["message"]
    assert "warning: step 10: 2 of the last 5 steps" in console.file.getvalue()
    reports = [line for line in lines if line["kind"] == "train"]
    assert all(math.isfinite(line[name]) for line in reports for name in ("loss", "gradient_norm"))


def test_a_report_without_a_step_that_was_taken(tiny, with_train, tmp_path, console, monkeypatch):
    spoil_gradients(range(3, 4), monkeypatch)
    start(with_train(tiny, report_every=1), tmp_path / "run", console)
    reported = [line["step"] for line in read_metrics(tmp_path / "run") if line["kind"] == "train"]
    assert reported == [n for n in range(1, 21) if n != 3]
    assert "The last step had a gradient" in console.file.getvalue()


@pytest.mark.parametrize(("first", "stopped"), [(1, "step 5: .* last 5 steps"), (4, "step 15")])
def test_a_run_that_skips_step_after_step_stops(
    first, stopped, tiny, with_train, tmp_path, console, monkeypatch
):
    config = with_train(tiny, budget="40steps", checkpoint_every=100, validate_every=100)
    spoil_gradients(range(first, 99), monkeypatch)
    with pytest.raises(UserError, match=rf"{stopped}.*not a finite number.*optim\.lr"):
        start(config, tmp_path / "run", console)


def test_an_update_that_breaks_the_weights_is_not_saved(tiny, with_train, tmp_path, console):
    """The losses of step 2 are still good, its update is not: only held-out text shows it."""
    config = replace(tiny, optim=replace(tiny.optim, lr=1e30, warmup=0.5))
    config = with_train(config, budget="4steps", checkpoint_every=2, report_every=2)
    with pytest.raises(UserError, match=r"stopped at step 2: held-out .* not a finite number"):
        start(config, tmp_path / "run", console)
    assert not checkpoint.checkpoints(tmp_path / "run")


@pytest.mark.parametrize(("budget", "steps"), [("7steps", 7), ("2000tokens", 8), ("2048tokens", 8)])
def test_step_and_token_budgets_end_annealed(budget, steps, tiny, with_train, tmp_path, console):
    """A step is 8 rows of 32 tokens: 256."""
    start(with_train(tiny, budget=budget, report_every=1), tmp_path / "run", console)
    lines = metrics_of(tmp_path / "run")
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert lines[-1]["tokens"] == steps * 256
    rates = [line["learning_rate"] for line in lines]
    assert rates[0] == 0
    assert rates[-1] <= 2.1e-3 / steps  # the last of the even steps down to zero
    assert sorted(rates[1:], reverse=True) == rates[1:]
    assert [p.name for p in checkpoint.checkpoints(tmp_path / "run")] == [f"step-{steps:08d}"]


def test_a_time_budget_ends_in_time_and_annealed(tiny, with_train, tmp_path, console, monkeypatch):
    """By a clock that this test moves: each step takes a second of it."""

    class Clock:
        now = 100.0

        @classmethod
        def perf_counter(cls):
            return cls.now

    original = Step.__call__

    def slow(*arguments):
        Clock.now += 1
        return original(*arguments)

    monkeypatch.setattr(loop, "time", Clock)
    monkeypatch.setattr(metric_accumulator, "time", Clock)
    monkeypatch.setattr(Step, "__call__", slow)
    start(with_train(tiny, budget="30s", report_every=1), tmp_path / "run", console)
    lines = metrics_of(tmp_path / "run")
    assert len(lines) == 30
    assert lines[-1]["seconds"] == 30
    assert lines[-1]["learning_rate"] == pytest.approx(2e-3 / 30, rel=1e-3)
    assert max(line["learning_rate"] for line in lines) > 1.5e-3
    assert lines[-1]["tokens_per_second"] == 256


def test_validation_does_not_disturb_training(tiny, with_train, tmp_path, console):
    config = with_train(tiny, budget="6steps", checkpoint_every=1000)
    often = trained(with_train(config, validate_every=1), tmp_path / "often", console)
    never = trained(with_train(config, validate_every=1000), tmp_path / "never", console)
    assert len(metrics_of(tmp_path / "often", "held_out")) == 6
    for name, weights in never.items():
        assert torch.equal(often[name], weights), name


def test_reporting_and_saving_do_not_disturb_training(tiny, with_train, tmp_path, console):
    config = with_train(tiny, budget="6steps", validate_every=1000)
    busy = trained(
        with_train(config, report_every=1, checkpoint_every=1), tmp_path / "busy", console
    )
    calm = trained(
        with_train(config, report_every=99, checkpoint_every=99), tmp_path / "calm", console
    )
    for name, weights in calm.items():
        assert torch.equal(busy[name], weights), name


def test_every_parameter_learns(tiny, with_train, tmp_path, console):
    """Also biases and LayerNorm, which others forgot to give to the optimizer."""
    config = with_train(tiny, budget="4steps", keep_last=9, checkpoint_every=1)
    last = trained(config, tmp_path / "run", console)
    first = load_file(tmp_path / "run" / "checkpoints" / "step-00000001" / "model.safetensors")
    for name, weights in last.items():
        assert not torch.equal(weights, first[name]), name


def test_a_run_begins_by_cleaning_up(tiny, tmp_path, console):
    opening, _ = opened_run(tiny, tmp_path / "run", console)
    (tmp_path / "run" / "checkpoints" / ".step-00000030.partial").mkdir(parents=True)
    with opening:
        assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_bf16_runs_with_fp32_weights(tiny, with_train, tmp_path, console):
    config = with_train(tiny, budget="6steps", report_every=1)
    weights = trained(with_train(config, precision="bf16"), tmp_path / "half", console)
    assert {w.dtype for w in weights.values()} == {torch.float32}
    trained(config, tmp_path / "full", console)
    half, full = (metrics_of(tmp_path / n)[0]["mlm_loss"] for n in ("half", "full"))
    assert half == pytest.approx(full, rel=0.02)
    assert half != full


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.slow
def test_compiled_is_eager(tiny, with_train, tmp_path, console, monkeypatch):
    import torch._inductor.config

    # Compiled code has its own random numbers, unless it is told to draw as eager code does
    monkeypatch.setattr(torch._inductor.config, "fallback_random", True)
    config = without_dropout(with_train(tiny, budget="5steps", report_every=1), temperature=1e-6)
    start(config, tmp_path / "eager", console)
    start(with_train(config, compile=True), tmp_path / "compiled", console)
    for eager, compiled in zip(
        metrics_of(tmp_path / "eager"), metrics_of(tmp_path / "compiled"), strict=True
    ):
        assert compiled["loss"] == pytest.approx(eager["loss"], rel=1e-4)


def test_the_documented_metrics_are_written(tiny, with_train, tmp_path, console):
    start(tiny, tmp_path / "run", console)
    both = {
        "loss",
        "mlm_loss",
        "detection_loss",
        "replaced_rate",
        "generator_accuracy",
        "generator_sampled_accuracy",
        "discriminator_accuracy",
        "precision",
        "recall",
    }
    diagnostics = {
        "fixed_auc",
        "accuracy_floor",
        "accuracy_above_floor",
        "generator_state_cosine",
        "discriminator_state_cosine",
        "generator_local_attention",
        "discriminator_local_attention",
    }
    speed = {"tokens_per_second", "peak_share", "learning_rate", "gradient_norm", "seconds"}
    train, held_out = metrics_of(tmp_path / "run"), metrics_of(tmp_path / "run", "held_out")
    assert [line["step"] for line in train] == [5, 10, 15, 20]
    assert [line["step"] for line in held_out] == [10, 20]
    for line in train:
        assert both | speed | {"tokens"} <= line.keys()
        assert line["tokens_per_second"] > 0
        assert 0 < line["peak_share"] < 1
        assert 0 < line["replaced_rate"] < 0.16
        assert line["loss"] == pytest.approx(line["mlm_loss"] + 50 * line["detection_loss"])
    for line in held_out:
        assert both | {"auc", "tokens"} | diagnostics <= line.keys()
        assert 0 < line["auc"] < 1
    begun = metrics_of(tmp_path / "run", "event")[0]
    assert begun["message"] == "started"
    assert begun["parameters"]["generator"] < begun["parameters"]["discriminator"]


def test_a_progress_line_is_of_the_step_that_it_names(tiny, with_train, tmp_path, console):
    """Validations at 8 and 16, checkpoints at 14 and at the end, which is no multiple of any."""
    config = with_train(tiny, budget="17steps", validate_every=8, checkpoint_every=14)
    weights = trained(config, tmp_path / "run", console)
    train = metrics_of(tmp_path / "run")
    assert [line["step"] for line in train] == [5, 8, 10, 14, 15, 16, 17]
    printed = [line for line in console.file.getvalue().splitlines() if "held-out" in line]
    for step, line in zip((8, 14, 16, 17), printed, strict=True):
        (reported,) = (each for each in train if each["step"] == step)
        assert f"  step {step}  " in line
        assert f"mlm_loss {reported['mlm_loss']:.3f}" in line
    often = trained(with_train(config, report_every=1), tmp_path / "often", console)
    assert all(torch.equal(often[name], weight) for name, weight in weights.items())
    last = metrics_of(tmp_path / "often")[-1]
    assert train[-1]["mlm_loss"] == pytest.approx(last["mlm_loss"], rel=1e-5)


def test_speed_and_peak_share_are_arithmetic(tiny, with_train, tmp_path, console, monkeypatch):
    """Tokens by the clock, and FLOPs by FLOP/s, over the stretch since the last report."""
    from electra.models.flops import row_flops, workloads_of
    from electra.objectives.corrupt import max_masked

    class Clock:
        now = 0.0

        @classmethod
        def perf_counter(cls):
            cls.now += 0.25
            return cls.now

    monkeypatch.setattr(loop, "time", Clock)
    monkeypatch.setattr(metric_accumulator, "time", Clock)
    start(with_train(tiny, budget="4steps", report_every=2), tmp_path / "run", console)
    config = read_run_config(tmp_path / "run")
    slots = max_masked(32, 0.15, "round")
    flops = row_flops(workloads_of("rtd", config.model, config.generator, 32, slots), 32)
    for line in metrics_of(tmp_path / "run"):
        seconds = 2 * 256 / line["tokens_per_second"]
        assert seconds % 0.25 == pytest.approx(0)
        assert line["peak_share"] == pytest.approx(2 * 8 * flops / seconds / 1e12)


def test_each_step_has_its_own_masks(tiny, with_train, tmp_path, console, monkeypatch):
    """Masks depend on seed and step alone."""
    counters = []
    original = Step.__call__

    def call(step, *arguments):
        counters.append(step.objective.counter.tolist())
        return original(step, *arguments)

    monkeypatch.setattr(Step, "__call__", call)
    config = with_train(tiny, seed=5, budget="6steps", checkpoint_every=3)
    start(config, tmp_path / "run", console)
    assert counters == [[5, step, 0] for step in range(6)]
