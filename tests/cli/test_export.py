"""`electra export`: which options go together, and that each of them arrives."""

from pathlib import Path

import pytest


@pytest.fixture
def exported(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "electra.export.run.export_model", lambda *given, **named: calls.append((given, named))
    )
    return calls


def test_every_option_arrives(electra, exported):
    command = (
        "export m --out o --format onnx --int8 --data d --card c --push-to-hub me/it --private"
    )
    assert electra(*command.split(), "--checkpoints")[0] == 0
    ((given, named),) = exported
    assert given == ("m", Path("o"), "onnx")
    assert (named["int8"], named["data"], named["card"]) == (True, Path("d"), Path("c"))
    push = named["push"]
    assert (push.name, push.private, push.checkpoints) == ("me/it", True, True)


def test_by_default_a_folder_for_transformers(electra, exported):
    assert electra("export", "m", "--out", "o")[0] == 0
    ((given, named),) = exported
    assert given[2] == "transformers"
    assert named["push"] is None


@pytest.mark.parametrize("option", ["--private", "--checkpoints"])
def test_options_of_a_push_need_one(option, refused, exported):
    assert "are for --push-to-hub" in refused("export", "m", "--out", "o", option)
    assert not exported


def test_bad_input_leaves_nothing(refused, tmp_path, finished):
    out = tmp_path / "out"
    assert "no model at" in refused("export", tmp_path / "none", "--out", out)
    assert "onyx" in refused("export", finished, "--out", out, "--format", "onyx")
    assert not out.exists()
