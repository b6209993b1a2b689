"""`electra play`: what it hands to the server, warnings and errors."""

import pytest


@pytest.fixture
def served(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "electra.play.server.serve", lambda models, **settings: calls.append((models, settings))
    )
    return calls


def test_loopback_unless_told_otherwise(electra, served):
    assert electra("play", "runs/a", "tuned") == (0, "", "")
    assert served[0][0] == ["runs/a", "tuned"]
    assert served[0][1]["host"] == "127.0.0.1"
    assert electra("play", "runs/a", "--host", "0.0.0.0", "--port", 8000)[0] == 0
    assert (served[1][1]["host"], served[1][1]["port"]) == ("0.0.0.0", 8000)


def test_bad_input_is_one_sentence(refused, monkeypatch, tmp_path, model_folder):
    pytest.importorskip("gradio")
    monkeypatch.chdir(tmp_path)
    assert "There is no model at 'nowhere'" in refused("play", "nowhere")
    assert "no folder 'nowhere'" in refused("play", "--runs", "nowhere")
    assert "is not an address" in refused("play", "--host", "no such host")
    assert "is not a device" in refused("play", model_folder, "--device", "abacus")
    monkeypatch.setattr("electra.play.models.installed_models", dict)
    assert "No model is installed" in refused("play")


def test_without_gradio(refused, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gradio", None)
    assert "pip install 'electra[play]'" in refused("play", "runs/a")
