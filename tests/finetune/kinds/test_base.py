"""What all task kinds have in common, and how a new kind is added."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from electra.finetune.kinds import KINDS
from electra.finetune.kinds.classify import Classify
from electra.finetune.predict import predict
from electra.finetune.run import finetune
from electra.models.encoder import Encoder, EncoderConfig
from electra.models.heads import (
    ClassificationHead,
    SpanHead,
    TokenClassificationHead,
    TransformersClassificationHead,
    TransformersSpanHead,
)
from electra.tasks.load import load_task


@pytest.mark.parametrize(
    ("kind", "head", "wanted", "drops"),
    [
        ("classify", "paper", ClassificationHead, {0.3}),
        ("classify", "transformers", TransformersClassificationHead, {0.3}),
        ("regress", "paper", ClassificationHead, {0.3}),
        ("regress", "transformers", TransformersClassificationHead, {0.3}),
        ("choice", "paper", ClassificationHead, {0.3}),
        # transformers drops the input of its classifier, but not that of its multiple choice
        ("choice", "transformers", TransformersClassificationHead, {0.0, 0.3}),
        ("tag", "paper", TokenClassificationHead, {0.0}),  # as in google-research/electra
        ("tag", "transformers", TokenClassificationHead, {0.3}),
        ("qa", "paper", SpanHead, set()),
        ("qa", "transformers", TransformersSpanHead, set()),
    ],
)
def test_each_kind_builds_its_head(kind, head, wanted, drops, make):
    encoder = Encoder(EncoderConfig(layers=1, hidden=32, embedding=16, vocab_size=40))
    built = make(kind, head, 5, dropout=0.3).build_head(encoder)
    assert type(built) is wanted
    attention_mask = torch.ones(3, 6, dtype=torch.bool)
    shape = {"classify": (3, 5), "tag": (3, 6, 5), "qa": (3, 6)}.get(kind, (3, 1))
    if wanted is TransformersSpanHead:
        shape = (3, 6, 2)
    assert built(torch.randn(3, 6, encoder.config.hidden), attention_mask).shape == shape
    assert {m.p for m in built.modules() if isinstance(m, nn.Dropout)} == drops


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_that_are_not_numbers_mean_divergence(
    kind, make, outputs, task_model, features, batch_of
):
    model = task_model(kind)
    rows = features(None, rows_per_example=3 if kind == "choice" else 1)
    found = {name: t.detach().numpy() for name, t in outputs(model, batch_of(rows), kind).items()}
    assert not make(kind).diverged(found)
    for name, values in found.items():
        if values.dtype.kind == "f":
            broken = values.copy()
            broken.flat[0] = np.nan
            assert make(kind).diverged(found | {name: broken})
    if kind in ("classify", "regress", "choice"):
        assert make(kind).diverged({"scores": np.array([[0.0, np.inf]])})


class Count(Classify):
    """A made-up kind: its head has layers inside layers and a parameter of its own name."""

    def build_head(self, encoder):
        head = super().build_head(encoder)
        head.dropout = nn.Sequential(nn.Dropout(0.1), nn.Linear(32, 32), nn.GELU())
        return head


def test_a_new_kind_needs_one_class_and_one_entry(
    model_folder, reviews, quick, tmp_path, console, monkeypatch
):
    """Fine-tuning, the stored model and `predict` know kinds through `KINDS` alone."""
    monkeypatch.setitem(KINDS, "count", Count)
    task = replace(load_task("classify", reviews), kind="count", metric="accuracy")
    out, config = tmp_path / "out", replace(quick, epochs=2)
    (result,) = finetune(str(model_folder), task, out, [0], config, console)
    weights = load_file(out / "model" / "model.safetensors")
    assert weights["head.dropout.1.weight"].shape == (32, 32)
    text = (out / "predictions" / "seed-0" / "dev.jsonl").read_text()
    wanted = [json.loads(line)["probabilities"] for line in text.splitlines()]
    (tmp_path / "dev.txt").write_text("".join(f"{e.text}\n" for e in task.splits["dev"]))
    found = list(predict(str(out), tmp_path / "dev.txt", device="cpu"))
    for one, two in zip(found, wanted, strict=True):
        assert one["probabilities"] == pytest.approx(two, abs=1e-5)
    assert result["settings"]["dropout"] == 0.1
