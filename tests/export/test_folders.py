"""The exported folders load in the libraries that they are for, with the same outputs."""

import json
import logging
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import electra
from electra.export.run import export_model

TEXTS = ["the old farmer went to the field .", "the bread"]


def test_both_networks_for_transformers(finished, tmp_path):
    from transformers import ElectraForMaskedLM, ElectraForPreTraining

    out, said = tmp_path / "out", []
    export_model(str(finished), out, "transformers", tell=said.append)
    assert said == [f"{out}: for transformers, discriminator and generator"]
    ElectraForPreTraining.from_pretrained(out / "discriminator")
    ElectraForMaskedLM.from_pretrained(out / "generator")
    text = "the old farmer went to the oven ."
    ours, theirs = (electra.load(folder, device="cpu").detect(text) for folder in (finished, out))
    assert ours == theirs


def test_a_fine_tuned_model_for_transformers(tuned, tmp_path):
    export_model(str(tuned), tmp_path / "out", "transformers", tell=print)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        *("README.md", "config.json", "model.safetensors", "task.json"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    ours, theirs = (
        electra.load(f, device="cpu").classify(TEXTS) for f in (tuned, tmp_path / "out")
    )
    assert ours == theirs


def test_a_tokenizer_of_vocab_txt_becomes_tokenizer_json(tuned, tmp_path):
    import shutil

    source = tmp_path / "source"
    shutil.copytree(tuned, source)
    vocab = json.loads((source / "model" / "tokenizer.json").read_text())["model"]["vocab"]
    (source / "model" / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.get)))
    (source / "model" / "tokenizer.json").unlink()
    export_model(str(source), tmp_path / "out", "transformers", tell=print)
    ours, theirs = (
        electra.load(f, device="cpu").classify(TEXTS) for f in (tuned, tmp_path / "out")
    )
    assert ours == theirs


@pytest.mark.parametrize("kind", ["finished", "tuned"])
def test_sentence_transformers_loads_it_without_a_warning(kind, request, tmp_path, caplog):
    from sentence_transformers import SentenceTransformer

    source, out = request.getfixturevalue(kind), tmp_path / "out"
    said: list[str] = []
    export_model(str(source), out, "sentence-transformers", tell=said.append)
    assert "contrastive" in said[1]
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        logging.getLogger("transformers").propagate = True
        model = SentenceTransformer(str(out), device="cpu")
        found = model.encode(TEXTS)
    assert not caplog.records
    assert model[1].pooling_mode == "mean"
    assert model.max_seq_length == 64
    wanted = electra.load(source, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_allclose(electra.load(out, device="cpu").encode(TEXTS), wanted, atol=1e-6)


def test_the_weights_have_no_head(finished, tmp_path):
    from safetensors.torch import load_file

    export_model(str(finished), tmp_path / "out", "sentence-transformers", tell=print)
    names = load_file(tmp_path / "out" / "model.safetensors").keys()
    assert {name.split(".")[0] for name in names} == {
        "embeddings",
        "embeddings_project",
        "encoder",
    }


def test_the_step_of_the_embeddings_page(finished, corpus, tmp_path, bash):
    import re

    page = Path(__file__).parents[2] / "docs" / "embeddings.md"
    (script,) = re.findall(r"<!-- tested -->\n```python\n(.*?)```", page.read_text(), re.S)
    export_model(str(finished), tmp_path / "embedder", "sentence-transformers", tell=print)
    (tmp_path / "my-text.txt").write_text(corpus.read_text())
    said = bash(f"python - <<'END'\n{script}\nEND\n")
    values = dict(
        line.split() for line in said.splitlines() if line.startswith(("before", "after"))
    )
    assert float(values["after"]) > float(values["before"]) + 0.1
    model = electra.load(tmp_path / "embedder-trained", device="cpu")
    assert torch.isfinite(torch.from_numpy(model.encode(TEXTS))).all()
