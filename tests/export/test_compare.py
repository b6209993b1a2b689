"""The scores printed beside int8 are those of the predictions of the two graphs."""

import csv

import pytest

import electra
from electra.export.compare import compare, describe_agreement, read_data
from electra.export.folders import find_source
from electra.export.onnx import OnnxNetwork


@pytest.fixture(scope="module")
def graphs(exported):
    return [exported[0] / "onnx" / name for name in ("model.onnx", "model_quantized.onnx")]


def test_the_accuracy_is_that_of_our_predictions(tuned, graphs, reviews, exported):
    found = compare(
        find_source(str(tuned)), *graphs, read_data(find_source(str(tuned)), reviews / "dev.csv")
    )
    with (reviews / "dev.csv").open() as file:
        rows = list(csv.DictReader(file))
    predicted = electra.load(tuned, device="cpu").classify([row["text"] for row in rows])
    right = [a["label"] == b["label"] for a, b in zip(predicted, rows, strict=True)]
    assert found.metric == "accuracy"
    assert found.scores[0] == pytest.approx(sum(right) / len(right))
    assert abs(found.scores[1] - found.scores[0]) < 0.2
    assert min(found.speeds) > 0
    _, said = exported
    assert "On the 60 examples of" in said[2]
    assert said[4].split()[:2] == ["fp32", f"{found.scores[0]:.4f}"]
    assert said[5].split()[:2] == ["int8", f"{found.scores[1]:.4f}"]


def test_a_wrong_graph_shows_in_the_scores(tuned, graphs, reviews, monkeypatch):
    """The second score is of the second graph."""
    forward = OnnxNetwork.forward
    monkeypatch.setattr(
        OnnxNetwork,
        "forward",
        lambda self, *inputs: forward(self, *inputs) * (-1 if self.session.quantized else 1),
    )
    made = OnnxNetwork.__init__

    def note(self, path, output):
        made(self, path, output)
        session = self.session
        self.session = type("S", (), {"run": session.run, "quantized": "quantized" in path.name})()

    monkeypatch.setattr(OnnxNetwork, "__init__", note)
    found = compare(
        find_source(str(tuned)), *graphs, read_data(find_source(str(tuned)), reviews / "dev.csv")
    )
    assert found.scores[0] + found.scores[1] == pytest.approx(1, abs=0.1)


def test_unlabelled_texts_give_the_agreement_alone(tuned, graphs, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("the bread\nthe old cargo\n", encoding="utf-8")
    found = compare(find_source(str(tuned)), *graphs, read_data(find_source(str(tuned)), path))
    assert (found.metric, found.scores, found.examples) == ("", [], 2)
    assert found.agreement.startswith("int8 and fp32 give the same label for ")


def test_agreement():
    a, b = [{"label": "x"}, {"label": "y"}], [{"label": "x"}, {"label": "x"}]
    assert "label for 50.0%" in describe_agreement(a, b)
    assert "tags for 0.0%" in describe_agreement([{"tags": ["A"]}], [{"tags": ["B"]}])
    assert "differ by 0.25" in describe_agreement([{"value": 1.0}], [{"value": 1.25}])
