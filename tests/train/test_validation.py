"""Held-out metrics against scikit-learn and scipy."""

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, precision_score, recall_score, roc_auc_score

from electra.errors import UserError
from electra.models.electra import GeneratorConfig, build_pair
from electra.models.encoder import EncoderConfig
from electra.objectives.objective import VocabInfo
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.settings import ObjectiveConfig
from electra.text.prepare import prepare
from electra.train.evaluate import evaluate, restore_run
from electra.train.validation import auc, validate

LENGTH = 24


@settings(deadline=None, max_examples=200)
@given(
    pairs=st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=60),
    scale=st.sampled_from([1.0, 1e-3, 17.3]),
)
def test_auc_with_ties(pairs, scale):
    scores = np.array([score * scale for score, _ in pairs], dtype=np.float32)
    labels = np.array([label for _, label in pairs])
    if labels.all() or not labels.any():
        assert np.isnan(auc(scores, labels))
    else:
        assert auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_auc_of_many_tokens():
    rng = np.random.default_rng(0)
    labels = rng.random(200_000) < 0.1
    scores = (rng.normal(size=200_000) + labels).astype(np.float32)
    assert auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-9)


@pytest.fixture
def objective():
    torch.manual_seed(0)
    model = EncoderConfig(layers=1, hidden=16, embedding=16, max_positions=LENGTH, vocab_size=40)
    networks = build_pair(model, GeneratorConfig(width=1.0))
    objective = ReplacedTokenDetection(
        ObjectiveConfig(mask_rate=0.3), *networks, VocabInfo(4, (0, 2, 3, 4))
    )
    with torch.no_grad():
        for p in objective.discriminator.parameters():
            p += 0.3 * torch.randn_like(p)  # opinions in both directions
    return objective


@pytest.fixture
def rows():
    """17 rows of many lengths: a last batch that is smaller, and a lot of padding."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(5, 40, (17, LENGTH + 2), generator=generator, dtype=torch.int32)
    total = torch.randint(4, LENGTH + 1, (17,), generator=generator)
    total[:4] = LENGTH
    for row, n in zip(rows, total.tolist(), strict=True):
        row[0], row[n // 2], row[n - 1] = 2, 3, 3
        row[n:LENGTH] = 0
        row[-2], row[-1] = n // 2 + 1, n
    return rows


@pytest.mark.parametrize("micro_batch", [5, 17])
def test_metrics_agree_with_scikit_learn(micro_batch, objective, rows):
    """Over the real tokens of all batches together: no padding, no mean of ratios."""
    seen = []
    objective.register_forward_hook(lambda _, given, outcome: seen.append((given, outcome)))
    found = validate(objective, rows, micro_batch, torch.float32)
    assert len(seen) == -(-17 // micro_batch)
    reals = [given[0].attention_mask for given, _ in seen]
    labels = torch.cat([o.replaced[r] for r, (_, o) in zip(reals, seen, strict=True)]).numpy()
    scores = torch.cat([o.logits[r] for r, (_, o) in zip(reals, seen, strict=True)]).numpy()
    assert len(labels) == int(rows[:, -1].sum())
    flagged = scores > 0
    assert 0.05 < flagged.mean() < 0.95
    assert found["precision"] == pytest.approx(precision_score(labels, flagged), rel=1e-5)
    assert found["recall"] == pytest.approx(recall_score(labels, flagged), rel=1e-5)
    accuracy = accuracy_score(labels, flagged)
    assert found["discriminator_accuracy"] == pytest.approx(accuracy, rel=1e-5)
    assert found["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-9)
    assert found["replaced_rate"] == pytest.approx(labels.mean(), rel=1e-5)
    right = [
        (o.corrupted.gather(1, g[1].positions) == g[1].labels)[g[1].is_masked] for g, o in seen
    ]
    sampled = torch.cat(right).float().mean().item()
    assert found["generator_sampled_accuracy"] == pytest.approx(sampled, rel=1e-5)


def test_padding_does_not_count(objective, rows):
    """What stands in the padding changes no figure."""
    before = validate(objective, rows, 5, torch.float32)
    place = torch.arange(LENGTH)
    other = rows.clone()
    other[:, :LENGTH][place >= rows[:, -1:]] = 7
    assert validate(objective, other, 5, torch.float32) == before


def test_each_validation_is_the_same_and_leaves_no_trace(objective, rows):
    objective.train()
    torch.rand(5)
    random = torch.get_rng_state()
    first = validate(objective, rows, 4, torch.float32)
    assert torch.equal(torch.get_rng_state(), random)
    assert objective.training
    assert all(m.training for m in objective.modules())
    torch.rand(5)
    assert validate(objective, rows, 4, torch.float32) == first
    objective.eval()
    validate(objective, rows, 4, torch.float32)
    assert not objective.training


def test_dropout_is_off_while_measuring(objective, rows):
    modes = []
    objective.discriminator.register_forward_hook(lambda m, *_: modes.append(m.training))
    objective.train()
    validate(objective, rows, 9, torch.float32)
    assert len(modes) >= 2
    assert not any(modes)


def test_a_run_is_evaluated_in_its_own_precision_and_micro_batches(
    finished, data_folder, tmp_path, monkeypatch
):
    run, seen = shutil.copytree(finished, tmp_path / "run"), []
    for file in run.rglob("config.yaml"):
        text = file.read_text(encoding="utf-8")
        assert "precision: auto\n" in text
        assert "grad_accumulation: 1\n" in text
        text = text.replace("precision: auto\n", "precision: bf16\n")
        file.write_text(
            text.replace("grad_accumulation: 1\n", "grad_accumulation: 2\n"), encoding="utf-8"
        )
    monkeypatch.setattr(
        "electra.train.evaluate.validate",
        lambda objective, rows, micro_batch, dtype: seen.append((len(rows), micro_batch, dtype)),
    )
    evaluate(run, data_folder, 7)
    assert seen == [(7, 4, torch.bfloat16)]


def test_a_run_is_not_evaluated_on_rows_longer_than_its_positions(
    finished, corpus, tokenizer_folder, tmp_path
):
    positions = restore_run(finished)[0].model.max_positions
    for length in (positions, positions + 1):
        prepare(
            [corpus],
            tokenizer=tokenizer_folder,
            out=tmp_path / str(length),
            length=length,
            workers=1,
        )
    evaluate(finished, tmp_path / str(positions), 4)
    with pytest.raises(UserError, match=rf"Rows of {positions + 1} tokens do not fit"):
        evaluate(finished, tmp_path / str(positions + 1), 4)


def test_masks_are_the_same_for_every_micro_batch_and_at_every_step(objective, rows):
    seen = []
    objective.register_forward_hook(lambda _, given, outcome: seen.append(given[1]))
    found = []
    for micro_batch, step in ((17, 0), (5, 0), (3, 99)):
        objective.set_seed(step)
        objective.set_step(step)
        validate(objective, rows, micro_batch, torch.float32)
        assert objective.counter.tolist() == [step, step, 0]  # training goes on with its own
        found.append([torch.cat(fields) for fields in zip(*seen, strict=True)])
        seen.clear()
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))
