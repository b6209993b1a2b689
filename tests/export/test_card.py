"""The cards of exported folders say what is known, and their code runs."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from electra.config import to_yaml
from electra.export.run import export_model
from electra.models.flops import row_flops
from electra.train.pretrain import read_run_config, row_workloads
from electra.train.scoring import ScoreOnConfig

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")


def exported_card(model, out, form="transformers", **options) -> tuple[dict, str]:
    """The front matter and the text of the card."""
    export_model(str(model), out, form, tell=lambda line: None, **options)
    card = (out / "README.md").read_text(encoding="utf-8")
    return yaml.safe_load(card.split("---")[1]), card


def test_what_a_run_knows(finished, tmp_path):
    matter, card = exported_card(finished, tmp_path / "first")
    assert matter == {
        "library_name": "transformers",
        "pipeline_tag": "feature-extraction",
        "tags": ["electra", "replaced-token-detection", "text-encoder"],
    }
    assert card.split("---\n")[2].startswith("\n# first\n")
    config = read_run_config(finished)
    flops = 20 * 8 * row_flops(row_workloads(config, 32), 32)
    assert f"| FLOPs | {flops:.2e} |" in card
    assert "| tokens seen | 5,120 |" in card
    assert "| discriminator | 0.0 M | 2 | 32 |" in card
    assert "fp16" not in card
    assert "pip install" not in card
    weights = tmp_path / "first" / "generator" / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert f"| `generator/model.safetensors` | `{digest}` |" in card
    assert str(tmp_path) not in card


def test_the_python_in_the_card_runs(finished, tmp_path, monkeypatch):
    _, card = exported_card(finished, tmp_path / "first")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", card, re.S)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, {})


def test_the_origin_of_a_continued_run(finished, tmp_path):
    import shutil

    run = tmp_path / "run"
    shutil.copytree(finished, run)
    path = run / "checkpoints" / "step-00000020" / "config.yaml"
    config = read_run_config(path.parent)
    config = replace(config, name="toy", score_on=ScoreOnConfig(data="/my/own/task.csv"))
    for number, (model, known) in enumerate(
        [("somebody/electra", "somebody/electra"), ("/home/me/secret", None), ("a-model-en", None)]
    ):
        config = replace(config, init_from=replace(config.init_from, model=model, sha256="0" * 64))
        path.write_text(to_yaml(config))
        matter, card = exported_card(run, tmp_path / f"out{number}")
        assert matter.get("base_model") == known
        assert ("| started from | somebody/electra |" in card) == (known is not None)
        assert f"--init-from {'MODEL' if model[0] == '/' else model}" in card
        assert "/home" not in card
        assert "/my/own" not in card
        assert "0" * 64 not in card


def test_a_run_with_a_schedule_of_lengths(finished, tmp_path):
    import shutil

    run = tmp_path / "run"
    shutil.copytree(finished, run)
    path = run / "checkpoints" / "step-00000020" / "config.yaml"
    config = read_run_config(path.parent)
    path.write_text(to_yaml(replace(config, data=replace(config.data, seq_length="16,32@0.5"))))
    state = json.loads((path.parent / "state.json").read_text())
    state |= {"rows_of_length": {"16": 100, "32": 60}}
    (path.parent / "state.json").write_text(json.dumps(state))
    _, card = exported_card(run, tmp_path / "out")
    assert "| sequence length | 16,32@0.5 |" in card
    assert "- It was trained on rows of 32 tokens" in card
    flops = sum(n * row_flops(row_workloads(config, k), k) for k, n in ((16, 100), (32, 60)))
    assert f"| FLOPs | {flops:.2e} |" in card


def test_a_fine_tuned_model(tune, tmp_path, monkeypatch):
    tuned = tune(head="transformers", pool="first")
    line = {"task": "moods", "metric": "accuracy", "failed": False}
    lines = [json.dumps(line | {"seed": seed, "score": 0.8 + seed / 10}) for seed in (0, 1)]
    (tuned / "results.jsonl").write_text("\n".join(lines))
    matter, card = exported_card(tuned, tmp_path / "moods")
    assert matter["pipeline_tag"] == "text-classification"
    (result,) = matter["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == 0.85
    assert result["task"]["type"] == "text-classification"
    assert "Fine-tuned on the task moods (`classify`, labels: bread, cargo)." in card
    assert "electra predict moods new-texts.csv" in card
    assert "## Sentence embeddings" not in card
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", card, re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {})


def test_a_head_that_transformers_lacks(tuned, tmp_path):
    matter, card = exported_card(tuned, tmp_path / "out")
    assert matter["library_name"] == "electra"
    assert "from transformers import" not in card
    assert 'electra.load("out")' in card


def test_for_sentence_transformers(finished, tmp_path, monkeypatch):
    form = "sentence-transformers"
    matter, card = exported_card(finished, tmp_path / "embedder", form)
    assert matter["library_name"] == form
    assert "| encoder | " in card
    assert "generator |" not in card.split("## Use")[0]
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", card, re.S)
    exec(block, {})


def test_for_onnx(exported):
    folder, _ = exported
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "onnx"
    assert "| `onnx/model_quantized.onnx` | `" in card
    assert "electra predict" not in card


@pytest.mark.parametrize(
    ("text", "message"),
    [("license: my own", "no SPDX identifier"), ("licence: MIT", "did you mean 'license'")],
)
def test_a_wrong_card_shows_before_anything_is_written(refused, finished, tmp_path, text, message):
    (tmp_path / "card.yaml").write_text(text)
    out = tmp_path / "out"
    assert message in refused("export", finished, "--out", out, "--card", tmp_path / "card.yaml")
    absent = tmp_path / "absent.yaml"
    assert "There is no file" in refused("export", finished, "--out", out, "--card", absent)
    assert not out.exists()


def test_the_example(bash, finished, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first").symlink_to(finished)
    (script,) = re.findall(r"<!-- tested: card -->\n```bash\n(.*?)```", PAGE, re.S)
    said = bash(script)
    assert said.endswith(
        "---\nlibrary_name: transformers\npipeline_tag: feature-extraction\nlanguage: en\n"
    )
