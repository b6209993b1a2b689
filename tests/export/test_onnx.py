"""ONNX graphs give the outputs of transformers and of our own predictions at any shape."""

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import electra
from electra.errors import UserError
from electra.export import onnx as exporting
from electra.export.run import export_model
from electra.hub.folders import load_tokenizer_and_vocab

TEXTS = ["the old farmer went to the field .", "bread", "in the harbour the sailor began to sail"]


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def tokenize(folder, texts):
    """What the tokenizer of the exported folder gives, padded."""
    tokenizer, _ = load_tokenizer_and_vocab(folder)
    tokenizer.enable_padding()
    rows = tokenizer.encode_batch(texts)
    named = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    return {name: np.array([getattr(r, field) for r in rows]) for name, field in named.items()}


def test_a_classifier_predicts_what_ours_predicts(exported, tuned):
    out, _ = exported
    run = session(out / "onnx" / "model.onnx")
    model = electra.load(tuned, device="cpu")
    for texts in (TEXTS, TEXTS[:1], TEXTS[1:2] * 9):
        (logits,) = run.run(None, tokenize(out, texts))
        found = torch.from_numpy(logits).softmax(-1)
        for row, record in zip(found, model.classify(texts), strict=True):
            assert row.tolist() == pytest.approx(
                [record["probabilities"][label] for label in ("bread", "cargo")], abs=1e-5
            )


def test_batch_and_length_are_dynamic(exported):
    run = session(exported[0] / "onnx" / "model.onnx")
    assert [i.name for i in run.get_inputs()] == list(exporting.INPUTS)
    assert all(i.shape == ["batch", "sequence"] for i in run.get_inputs())
    assert run.get_outputs()[0].shape == ["batch", 2]


def test_the_quantized_graph_computes_in_int8(exported):
    out, _ = exported
    small = onnx.load(out / "onnx" / "model_quantized.onnx")
    kinds = [node.op_type for node in small.graph.node]
    assert kinds.count("MatMulInteger") == 2 * 4 + 1 + 1  # layers, projection, head
    sizes = [
        (out / "onnx" / name).stat().st_size for name in ("model.onnx", "model_quantized.onnx")
    ]
    assert sizes[1] < sizes[0]


def test_a_discriminator_gives_what_transformers_gives(model_folder, tmp_path):
    from transformers import ElectraForPreTraining

    out, said = tmp_path / "out", []
    export_model(str(model_folder), out, "onnx", tell=said.append)
    inputs = tokenize(out, TEXTS)
    found = session(out / "onnx" / "model.onnx").run(["logits", "last_hidden_state"], inputs)
    theirs = ElectraForPreTraining.from_pretrained(model_folder)
    with torch.no_grad():
        tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
        expected = theirs(**tensors, output_hidden_states=True)
    tokens = inputs["attention_mask"].astype(bool)
    for ours, wanted in zip(found, (expected.logits, expected.hidden_states[-1]), strict=True):
        np.testing.assert_allclose(ours[tokens], wanted.numpy()[tokens], atol=2e-5, rtol=1e-4)
    assert not (out / "onnx" / "model_quantized.onnx").exists()
    assert "outputs last_hidden_state and logits" in said[0]


def test_a_graph_that_differs_is_not_written(exported, tuned, tmp_path, monkeypatch):
    """The graph is that of the model before its weights changed a little."""
    right = exported[0] / "onnx" / "model.onnx"

    def write_wrong(network, path):
        with torch.no_grad():
            network.encoder.layers[1].down_proj.bias[0] += 0.01
        shutil.copyfile(right, path)

    monkeypatch.setattr(exporting, "write_onnx", write_wrong)
    with pytest.raises(UserError, match=r"differs from torch by .*nothing was written"):
        export_model(str(tuned), tmp_path / "out", "onnx", tell=print)
    assert not list(tmp_path.iterdir())


def test_a_difference_is_relative_to_large_outputs_and_sees_nan():
    wanted = torch.tensor([0.0, 100.0])
    assert exporting.relative_difference(wanted + 0.5, wanted) == pytest.approx(0.005)
    assert exporting.relative_difference(wanted / 100 + 0.5, wanted / 100) == pytest.approx(0.5)
    assert not exporting.relative_difference(wanted * float("nan"), wanted) <= 1


def test_the_example_of_the_page(exported, tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2] / "docs" / "export.md"
    (script,) = re.findall(r"<!-- tested -->\n```python\n(.*?)```", page.read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned-onnx").symlink_to(exported[0])
    exec(script, {})
    (logits,) = session(exported[0] / "onnx" / "model.onnx").run(
        None, tokenize(exported[0], ["the bread was in the oven .", "cargo"])
    )
    assert capsys.readouterr().out == f"{logits.argmax(-1)}\n"


def test_question_answering_is_refused(tune, tmp_path, refused):
    folder = tune("qa", labels=[], columns={})
    said = refused("export", folder, "--out", tmp_path / "out", "--format", "onnx")
    assert "answers questions" in said
    assert not (tmp_path / "out").exists()
