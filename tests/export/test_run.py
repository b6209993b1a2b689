"""`electra export` as a user types it, and what it refuses."""

from electra.errors import UserError
from electra.export import run


def test_what_is_refused(refused, finished, tuned, reviews, tmp_path):
    out = tmp_path / "out"
    assert "did you mean 'onnx'" in refused("export", finished, "--out", out, "--format", "onx")
    assert "for --format onnx" in refused("export", tuned, "--out", out, "--int8")
    onnx = ("--out", out, "--format", "onnx")
    assert "--int8 needs --data" in refused("export", tuned, *onnx, "--int8")
    assert "--int8 needs --data" in refused("export", tuned, *onnx, "--data", reviews / "dev.csv")
    gone = tmp_path / "gone.csv"
    assert "There is no file" in refused("export", tuned, *onnx, "--int8", "--data", gone)
    assert "There is no model" in refused("export", tmp_path / "nothing" / "here", "--out", out)
    assert not list(tmp_path.iterdir())
    out.mkdir()
    (out / "mine").write_text("x")
    assert "already exists" in refused("export", finished, "--out", out)
    assert (out / "mine").read_text() == "x"


def test_without_onnx_the_error_names_the_extra(refused, tuned, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    said = refused("export", tuned, "--out", tmp_path / "out", "--format", "onnx")
    assert "electra[onnx]" in said
    assert not list(tmp_path.iterdir())


def test_the_default_format(electra, tune, tmp_path):
    model = tune(head="transformers", pool="first")
    code, said, _ = electra("export", model, "--out", tmp_path / "out")
    assert (code, said) == (0, f"{tmp_path / 'out'}: for transformers\n")


def test_a_head_that_transformers_lacks(electra, tuned, tmp_path):
    code, said, _ = electra("export", tuned, "--out", tmp_path / "out")
    assert code == 0
    assert "transformers loads only the encoder of this model" in said


def test_an_error_leaves_nothing(finished, tmp_path, monkeypatch):
    def fail(model, staging):
        (staging / "half").write_text("x")
        raise UserError("no")

    monkeypatch.setattr(run, "write_transformers", fail)
    import pytest

    with pytest.raises(UserError):
        run.export_model(str(finished), tmp_path / "out", "transformers", tell=print)
    assert not list(tmp_path.iterdir())
