"""`electra release`, and every command with the name of an installed model."""

import json

import pytest


def test_release_writes_a_package_and_says_how_to_install_it(electra, finished, tmp_path):
    out = tmp_path / "weights" / "a-b"
    code, said, _ = electra("release", finished, "--name", "a-b", "--out", out)
    assert code == 0
    assert said.splitlines()[1] == f"  pip install {out}"
    assert {path.name for path in out.iterdir()} == {"README.md", "pyproject.toml", "a_b"}


def test_pip_gets_a_path_and_not_a_name(electra, finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, said, _ = electra("release", finished, "--name", "a-b", "--out", "a-b")
    assert said.splitlines()[1] == "  pip install ./a-b"


def test_bad_input_is_one_sentence(refused, finished, tmp_path, released):
    ask = ("release", finished, "--name", "a-b", "--out", tmp_path / "out")
    assert "lower-case" in refused("release", finished, "--name", "A", "--out", tmp_path / "out")
    assert "such as 1.0.0" in refused(*ask, "--version", "new")
    assert "There is no file" in refused(*ask, "--card", tmp_path / "none.yaml")
    (tmp_path / "card.yaml").write_text("license: ask me\n")
    assert "no SPDX identifier" in refused(*ask, "--card", tmp_path / "card.yaml")
    assert "already exists" in refused("release", finished, "--name", "a-b", "--out", released)
    assert "There is no model" in refused(
        "release", "nothing", "--name", "a-b", "--out", tmp_path / "out"
    )
    assert not (tmp_path / "out").exists()


def test_every_command_takes_the_name(electra, refused, installed, reviews, tmp_path, monkeypatch):
    import electra as package

    installed("tiny-model-xx")
    monkeypatch.chdir(tmp_path)
    code, said, _ = electra("detect", "tiny-model-xx", "the old farmer", "--json")
    assert code == 0
    tokens = json.loads(said)
    model = package.load("tiny-model-xx")
    assert [t["replaced"] for t in tokens] == [t.replaced for t in model.detect("the old farmer")]
    code, said, _ = electra("fill", "tiny-model-xx", "the [MASK] .", "--json")
    assert (code, len(json.loads(said)[0])) == (0, 5)
    (tmp_path / "text.txt").write_text("the old farmer went home .\n\n" * 40, encoding="utf-8")
    assert electra("tokenizer", "inspect", "tiny-model-xx", "text.txt")[0] == 0
    shards = ("prepare", "text.txt", "--out", "shards", "--length", 16, "--held-out", 0.1)
    assert electra(*shards, "--tokenizer", "tiny-model-xx")[0] == 0
    again = ("pretrain", "--init-from", "tiny-model-xx", "--data", "shards", "--out", "again")
    assert electra(*again, "--budget", "1steps", "data.batch_size=2", "train.device=cpu")[0] == 0

    tune = ("finetune", "tiny-model-xx", "classify", "--data", reviews, "--out", "tuned")
    assert electra(*tune, "--seeds", "1", "epochs=1")[0] == 0
    (tmp_path / "new.txt").write_text("the bread\n")
    code, said, _ = electra("predict", "tuned", "new.txt")
    assert (code, set(json.loads(said)["probabilities"])) == (0, {"bread", "cargo"})
    assert "is not a fine-tuned model" in refused("predict", "tiny-model-xx", "new.txt")

    (tmp_path / "glue" / "CoLA").mkdir(parents=True)
    rows = "".join(f"x\t{i % 2}\t\tthe {w}\n" for i, w in enumerate(("farmer", "oven") * 8))
    for split in ("train", "dev"):
        (tmp_path / "glue" / "CoLA" / f"{split}.tsv").write_text(rows)
    scores = ("glue", "tiny-model-xx", "--data", "glue", "--out", "scores", "--seeds", "1")
    assert electra(*scores, "epochs=1")[0] == 0

    pair = {"sentence_good": "the farmer went", "sentence_bad": "farmer the went", "UID": "order"}
    pair |= {"field": "syntax", "linguistics_term": "order"}
    (tmp_path / "blimp").mkdir()
    (tmp_path / "blimp" / "order.jsonl").write_text(json.dumps(pair) + "\n")
    code, said, _ = electra(
        "probe", "tiny-model-xx", "--data", "blimp", "--network", "both", "--json"
    )
    assert code == 0
    lines = list(map(json.loads, said.splitlines()))
    networks = {"discriminator", "generator", "combined"}
    assert {(line["network"], line["phenomenon"]) for line in lines} == {
        (network, phenomenon) for network in networks for phenomenon in ("order", "all")
    }


@pytest.mark.parametrize("command", [("detect", "x"), ("fill", "[MASK]")])
def test_an_unknown_name_is_one_sentence(refused, installed, command):
    installed("tiny-model-xx")
    verb, text = command
    assert refused(verb, "tiny-model", text).endswith("Did you mean 'tiny-model-xx'?\n")


def test_a_damaged_model_is_one_sentence(refused, installed):
    path = installed("tiny-model-xx") / "discriminator" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    said = refused("detect", "tiny-model-xx", "the old farmer")
    assert "model.safetensors is damaged" in said
    assert "install the model again" in said
