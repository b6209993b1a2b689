"""Every objective as a run: it trains, resumes to the bit, exports, and tells sensible metrics."""

import io
import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import ElectraForMaskedLM, ElectraForPreTraining

from electra.api import load
from electra.config import override
from electra.errors import UserError
from electra.hub.folders import load_discriminator
from electra.model_paths import resolve_model
from electra.objectives.batch import unpack
from electra.objectives.two_stage import TwoStage
from electra.text.shards import Shards
from electra.text.tokenizer import load_tokenizer, load_vocabulary
from electra.train import checkpoint, loop, pretrain, restore
from electra.train.evaluate import evaluate, restore_run
from electra.train.health import HealthCheck
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import resume, start
from electra.train.progress_view import ProgressView, format_metric, metrics_present
from electra.train.report import write_report
from electra.train.validation import token_counts

STAGES = ("objective.kind=two-stage", "generator.tie=none")
VARIANTS = {
    "rtd-masked": ("objective.kind=rtd-masked",),
    "mlm": ("objective.kind=mlm",),
    "80-10-10": (
        "objective.kind=mlm",
        "objective.mask_token_prob=0.8",
        "objective.random_token_prob=0.1",
    ),
    "replace-mlm": ("objective.kind=replace-mlm",),
    "all-tokens-mlm": ("objective.kind=all-tokens-mlm",),
    "two-stage": (*STAGES, "generator.width=1"),
    "two-stage, own start": (*STAGES, "objective.init_from_generator=false"),
    "adversarial": ("objective.kind=adversarial",),
    "electric": ("objective.kind=electric",),
    "gdes": ("generator.tie=gdes",),
    "unigram": ("generator.kind=unigram",),
    "uniform": ("generator.kind=uniform", "objective.kind=replace-mlm"),
    "more and more masks": ("objective.mask_rate=0.05", "objective.mask_rate_end=0.5"),
}
DISCRIMINATES = {v for v in VARIANTS if "mlm" not in v and v not in ("80-10-10", "uniform")}


@dataclass
class Ran:
    """A finished run of a variant."""

    name: str
    out: Path

    @property
    def last(self) -> Path:
        return checkpoint.checkpoints(self.out)[-1]


OFTEN = (
    "train.budget=12steps",
    "train.report_every=3",
    "train.validate_every=3",
    "train.checkpoint_every=6",
    "train.keep_last=9",
)
"""A short run that reports, validates and saves often."""


@pytest.fixture(autouse=True)
def _no_yardstick(monkeypatch):
    """Measuring the hardware's peak takes longer than these runs."""
    monkeypatch.setattr(pretrain, "measure_peak", lambda *_: 1e12)


@pytest.fixture(scope="module", params=VARIANTS)
def ran(request, tiny, tmp_path_factory) -> Ran:
    """Twelve steps, with a checkpoint in the middle; to be read only."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("ran") / "run"
    console = Console(file=io.StringIO(), width=200)
    assert start(override(tiny, [*OFTEN, *VARIANTS[request.param]]), out, console) == 0
    return Ran(request.param, out)


@pytest.fixture
def run_with(tiny, tmp_path, console):
    """A run with other settings, in a folder of that name."""

    def ran(name: str, *settings: str) -> Path:
        assert start(override(tiny, [*OFTEN, *settings]), tmp_path / name, console) == 0
        return tmp_path / name

    return ran


def metrics_of(out: Path, kind: str) -> list[dict]:
    return [line for line in read_metrics(out) if line["kind"] == kind]


def test_a_resumed_run_is_the_run(ran, tmp_path, console, monkeypatch):
    """From the checkpoint in the middle, where two stages have not yet changed; words once."""
    out = tmp_path / "resumed"
    shutil.copytree(ran.out, out)
    shutil.rmtree(checkpoint.checkpoints(out)[-1])
    monkeypatch.setattr(restore, "token_counts", None)  # nothing is counted a second time
    assert resume(out, console) == 0
    again = checkpoint.checkpoints(out)[-1]
    assert again.name == ran.last.name == "step-00000012"
    for name in ("model", "optimizer", "random"):
        one, two = (load_file(c / f"{name}.safetensors") for c in (ran.last, again))
        assert one.keys() == two.keys()
        for key in one:
            assert torch.equal(one[key], two[key]), f"{name}: {key}"
    for line, expected in zip(
        metrics_of(out, "held_out"), metrics_of(ran.out, "held_out"), strict=True
    ):
        assert line == expected


def test_it_learns(ran):
    """Every parameter that has a loss has moved between the two checkpoints."""
    one, two = (load_file(c / "model.safetensors") for c in checkpoint.checkpoints(ran.out))
    still = {name for name in one if torch.equal(one[name], two[name])}
    if ran.name.startswith("two-stage"):
        assert still == {n for n in one if n.startswith("generator.")}  # frozen from here on
    else:
        assert still <= {"generator.logits"}


def test_the_metrics_are_sensible(ran):
    held_out = metrics_of(ran.out, "held_out")
    assert [line["step"] for line in held_out] == [3, 6, 9, 12]
    train = metrics_of(ran.out, "train")
    for line in (*held_out, *train):
        assert line["loss"] is not None
        shares = [line[k] for k in line if k.endswith(("accuracy", "recall", "rate", "auc"))]
        assert all(0 <= share <= 1 for share in shares if share is not None)
    first, last = held_out[0], held_out[-1]
    assert ("auc" in last) == (ran.name in DISCRIMINATES)
    assert ("model_accuracy" in last) == (ran.name not in DISCRIMINATES)
    assert ("mlm_loss" in last) == (ran.name not in ("mlm", "80-10-10"))
    assert ("recall" in first) == ("recall" in last and not ran.name.startswith("two-stage"))
    shown_now = {label for _, label in metrics_present(train[-1], last)}
    assert any("loss" in label for label in shown_now)
    if ran.name in ("mlm", "80-10-10"):
        assert shown_now == {
            "model loss",
            "model accuracy, masked positions",
            "accuracy above copying and frequency",
            "mean cosine of token states, model",
            "attention to neighbours, model",
        }


def as_it_was(line: dict) -> dict:
    """JSON has no word for what is no number, such as the AUC where all tokens are replaced."""
    return {k: float("nan") if v is None else v for k, v in line.items()}


def test_the_log_line_and_the_table_have_them(ran):
    train, held_out = (as_it_was(metrics_of(ran.out, kind)[-1]) for kind in ("train", "held_out"))
    for terminal in (True, False):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=110, color_system=None)
        with ProgressView(console, "run") as view:
            view.update(progress=0.5, seconds=9.0, status="step 9", train=train, held_out=held_out)
        main = "model_loss" if "model_loss" in train else "detection_loss"
        assert f"{train[main]:.3f}" in text.getvalue()
        assert "step 9" in text.getvalue()


def test_evaluate_and_report(ran, data_folder, tmp_path):
    where, found = evaluate(ran.out, data_folder, rows=16)
    assert where == ran.last
    held_out = as_it_was(metrics_of(ran.out, "held_out")[-1])
    stored = {k: v for k, v in held_out.items() if k in found}
    assert {k: found[k] for k in stored} == pytest.approx(stored, nan_ok=True)
    # Where tokens of both kinds are judged, every metric is a number.
    json.dumps(found, allow_nan=math.isnan(found.get("auc", math.nan)))
    for key, _ in metrics_present(
        found
    ):  # as the command prints them: a dash for what is no number
        assert (format_metric(key, found[key]) == "–") == (found[key] != found[key])
    _, page = write_report([ran.out], tmp_path)
    text = page.read_text(encoding="utf-8")
    for key, label in metrics_present(metrics_of(ran.out, "train")[-1], found):
        assert f"<td>{label}</td>" in text, key


@torch.no_grad()
def test_transformers_loads_what_is_kept(ran, data_folder):
    """And gives the logits that the objective's own network gives."""
    folder = resolve_model(str(ran.out), "encoder")
    rows = Shards.open(data_folder).gather("held_out", torch.arange(8).numpy())
    ids, segments, original, *_ = unpack(torch.from_numpy(rows))
    given = {"input_ids": ids, "token_type_ids": segments, "attention_mask": original.long()}
    objective = restore_run(ran.out)[1]
    kind = ElectraForPreTraining if ran.name in DISCRIMINATES else ElectraForMaskedLM
    theirs, found = kind.from_pretrained(folder, output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    expected = theirs.eval()(**given).logits
    if ran.name in DISCRIMINATES:
        ours = objective.discriminator(ids, segments, original)
    else:
        places = torch.arange(ids.shape[1]).expand_as(ids)
        ours = objective.mlm(ids, segments, original, places)[..., : expected.shape[-1]]
    torch.testing.assert_close(ours[original], expected[original], atol=1e-5, rtol=0)


def test_fine_tuning_finds_the_encoder(ran):
    from electra.finetune.run import load_pretrained

    for place in (ran.out, ran.last, resolve_model(str(ran.out), "encoder")):
        assert load_pretrained(str(place)).encoder.config.hidden == 32


def test_detect_and_fill_answer_or_say_why_not(ran):
    if ran.name == "electric":
        with pytest.raises(UserError, match="energies, not probabilities"):
            load(ran.out).detect("the old farmer")
    elif ran.name in DISCRIMINATES:
        assert len(load(ran.out).detect("the farmer")) == 2
    else:
        with pytest.raises(UserError, match=r"has no discriminator, only .*mlm.*objective\.kind"):
            load(ran.out).detect("the old farmer")
    if ran.name in ("electric", "unigram"):
        with pytest.raises(UserError, match="has no generator, only discriminator"):
            load(ran.out).fill("the old [MASK]")
    else:
        assert len(load(ran.out).fill("the old [MASK]")[0]) == 5


@pytest.mark.parametrize("name", VARIANTS)
def test_half_precision_gives_nearly_the_same_loss(name, run_with):
    """Products in bf16; losses, samples and weights in fp32."""
    few = ("train.budget=1steps", "train.report_every=1", "model.dropout=0")
    full, half = (
        metrics_of(
            run_with(precision, *VARIANTS[name], *few, f"train.precision={precision}"), "train"
        )
        for precision in ("fp32", "bf16")
    )
    assert half[0]["loss"] == pytest.approx(full[0]["loss"], rel=0.02)
    assert half[0]["loss"] != full[0]["loss"]


def test_the_rehearsal_sees_both_stages_and_changes_none(run_with, monkeypatch):
    """Too little memory for the second stage has to show at the start."""
    seen, original = [], TwoStage.forward

    def forward(self, *given):
        seen.append((self.in_second_stage, self.discriminator.dense.weight.grad is None))
        return original(self, *given)

    monkeypatch.setattr(TwoStage, "forward", forward)
    out = run_with("run", *VARIANTS["two-stage"], "train.budget=2steps", "train.validate_every=9")
    rehearsal = [False] * 3 + [True] * 3  # the memory of one row and of two, then the batch
    assert [second for second, _ in seen] == [*rehearsal, False, True, True, True]
    assert seen[6][1]  # no gradient of the rehearsal is left
    assert int(load_file(out / "checkpoints/step-00000002/model.safetensors")["stage"]) == 2


def test_each_stage_has_its_schedule_and_its_best(run_with):
    """Eight steps: the generator's rate ends annealed, and the discriminator's begins at 0."""
    settings = (*VARIANTS["two-stage"], "train.budget=8steps", "train.report_every=1")
    out = run_with("run", *settings, "train.checkpoint_every=2", "optim.warmup=0.25")
    train = metrics_of(out, "train")
    rates = [line["learning_rate"] for line in train]
    assert rates[:4] == rates[4:] == pytest.approx([0, 1.5e-3, 1e-3, 0.5e-3])
    assert [("recall" in line) for line in train] == [False] * 4 + [True] * 4
    best = checkpoint.read_state(checkpoint.checkpoints(out)[-1]).best
    assert best["step"] > 4  # the losses of the stages do not compare
    assert "discriminator_accuracy" not in metrics_of(out, "held_out")[0]


@pytest.mark.parametrize(("name", "stages"), [("rtd-masked", 1), ("two-stage", 2)])
def test_each_stage_warms_up_for_as_many_steps(name, stages, run_with):
    """Twelve steps a stage, two of them warm-up."""
    settings = (f"train.budget={12 * stages}steps", "train.report_every=1", "optim.warmup=2")
    rates = [
        line["learning_rate"]
        for line in metrics_of(run_with("run", *VARIANTS[name], *settings), "train")
    ]
    stage = [2e-3 * min(1, step / 2) * (1 - step / 12) for step in range(12)]
    assert rates == pytest.approx(stage * stages)


def test_the_second_stage_begins_with_the_copied_weights(run_with):
    """Its first step has rate 0, so the checkpoint behind it shows the start."""
    settings = ("train.budget=8steps", "train.checkpoint_every=1", "optim.warmup=0.25")
    for name, copied in (("two-stage", True), ("two-stage, own start", False)):
        more = () if copied else ("generator.width=1",)
        out = run_with(name, *VARIANTS[name], *more, *settings)
        before, after = (
            load_file(out / "checkpoints" / f"step-0000000{n}" / "model.safetensors")
            for n in (4, 5)
        )
        assert (int(before["stage"]), int(after["stage"])) == (1, 2)
        for key in (k for k in after if k.startswith("discriminator.encoder.")):
            source = after[key.replace("discriminator.", "generator.")] if copied else before[key]
            assert torch.equal(after[key], source), key
        moments = load_file(out / "checkpoints" / "step-00000004" / "optimizer.safetensors")
        assert not any(m.any() for n, m in moments.items() if ".discriminator." in n)


def test_the_mask_rate_rises_with_progress(run_with):
    settings = VARIANTS["more and more masks"]
    out = run_with("run", *settings, "train.report_every=1", "objective.disallow_correct=true")
    rates = [line["replaced_rate"] for line in metrics_of(out, "train")]
    assert rates == pytest.approx([0.05 + 0.45 * step / 12 for step in range(12)], abs=0.025)
    held_out = [line["replaced_rate"] for line in metrics_of(out, "held_out")]
    assert held_out == pytest.approx([held_out[0]] * 4)  # always at the first rate
    assert held_out[0] < 0.09


def test_words_are_counted_in_the_training_rows_alone(data_folder, run_with):
    shards = Shards.open(data_folder)
    vocab = load_vocabulary(shards.tokenizer)
    expected = torch.zeros(192)  # 150, padded to a multiple of 64
    for row in shards.gather("train", torch.arange(shards.rows("train")).numpy()):
        for token in row[: row[-1]]:
            expected[token] += 1
    assert token_counts(shards, 192).tolist() == expected.tolist()
    out = run_with("run", *VARIANTS["unigram"])
    found = load_file(checkpoint.checkpoints(out)[-1] / "model.safetensors")["generator.logits"]
    expected[list(vocab.special)] = 0
    expected[: vocab.size] = expected[: vocab.size].clamp_min(0.01)
    expected[list(vocab.special)] = 0
    torch.testing.assert_close(found.exp(), expected / expected.sum(), atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_is_not_blamed_for_what_its_objective_does_not_do(
    name, run_with, monkeypatch, console
):
    """A short run knows nothing yet, so the watch speaks; what it says must be about the run."""
    monkeypatch.setattr(loop, "MIN_STEPS_FOR_WARNINGS", 0)
    out = run_with("run", *VARIANTS[name], "train.budget=4steps", "train.validate_every=1")
    said = [e["message"] for e in metrics_of(out, "event") if e["message"] != "started"]
    words = [s for s in said if "opening plateau:" in s]
    collapsed = [s for s in said if "has collapsed" in s]
    assert len(said) == len(words) + len(collapsed)
    if name in ("unigram", "uniform", "adversarial"):  # their generators are taught no words
        assert not words
    elif name in ("mlm", "80-10-10"):
        assert words[0].startswith("The model is still")
    else:
        assert words[0].startswith("The generator is still")
    if name not in DISCRIMINATES or name == "electric":
        assert not collapsed


def test_the_health_check_goes_by_the_stage(run_with, monkeypatch):
    seen = []
    monkeypatch.setattr(loop, "MIN_STEPS_FOR_WARNINGS", 0)
    monkeypatch.setattr(HealthCheck, "check", lambda self, *given: seen.append(given[:2]) or {})
    settings = ("train.budget=8steps", "train.validate_every=2", "optim.warmup=1")
    run_with("run", *VARIANTS["two-stage"], *settings)
    # At the boundary, the weights of the first stage are measured.
    assert seen == [(0.5, 0.25), (1.0, 0.25), (0.5, 0.25), (1.0, 0.25)]


def test_a_collapse_is_still_named():
    ill = {"loss": 1.0, "mlm_loss": 3.0, "recall": 0.0, "auc": 0.5}
    (finding,) = HealthCheck().check(0.5, 0.1, ill).values()
    assert "collapsed" in finding


TEXTS = [
    "the old farmer went to the field to plough the barley .",
    "the bread",
    "",
    "when the mill was closed , the weaver would spin in the loom .",
]


def test_electrics_scores_are_minus_the_energies(run_with):
    """Sentence by sentence, token by token; one pass for each, whatever stands beside it."""
    out = run_with("run", *VARIANTS["electric"])
    folder = resolve_model(str(out), "discriminator")
    network, tokenizer = load_discriminator(folder), load_tokenizer(folder)
    vocab = load_vocabulary(folder)
    expected = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        row = torch.tensor([[vocab.cls, *ids, vocab.sep]])
        energies = network(row, torch.zeros_like(row))[0].detach().tolist()
        expected.append(sum(-energies[place] for place in range(1, len(ids) + 1)))
    found = load(out).score(TEXTS)
    assert found == pytest.approx(expected, abs=1e-4)
    assert found[2] == 0
    assert load(folder).score(TEXTS[::-1]) == pytest.approx(expected[::-1], abs=1e-4)
    assert load(out).score([]) == []
    long = "the old farmer " * 40
    with pytest.raises(UserError, match=r"the model takes 62: .* begins with 'the old farmer"):
        load(out).score([*TEXTS, long])


def test_only_electric_gives_scores(finished):
    with pytest.raises(UserError, match=r"not trained with objective\.kind=electric"):
        load(finished).score(["the old farmer"])
