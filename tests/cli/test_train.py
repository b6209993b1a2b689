"""`recipes`, `pretrain`, `evaluate` and `report` as a user has them."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from electra.config import from_yaml
from electra.recipes import RECIPES
from electra.text.prepare import prepare
from electra.text.shards import Shards
from electra.text.tokenizer import train_tokenizer
from electra.train import checkpoint
from electra.train.settings import PretrainConfig

QUICK = (
    "model.hidden=32",
    "model.embedding=16",
    "data.seq_length=32",
    "data.batch_size=8",
    "train.device=cpu",
    "train.report_every=5",
    "train.validate_every=10",
    "train.validate_rows=16",
)
"""The toy recipe in a second."""


@pytest.fixture(scope="module")
def other_data(tmp_path_factory) -> Path:
    """Shards of another tokenizer."""
    folder = tmp_path_factory.mktemp("other")
    text = folder / "text.txt"
    text.write_text("\n\n".join(f"zebra {i} yak {i % 7} xenon" for i in range(400)))
    train_tokenizer([text], folder / "tokenizer", vocab_size=64)
    prepare(
        [text],
        tokenizer=folder / "tokenizer",
        out=folder / "shards",
        length=32,
        workers=1,
        held_out=0.1,
    )
    return folder / "shards"


def test_short_rows_first(electra, corpus, tokenizer_folder, tmp_path):
    shards, run = tmp_path / "shards", tmp_path / "run"
    prepare_it = ("prepare", corpus, "--tokenizer", tokenizer_folder, "--out", shards)
    prepare_it += ("--workers", 1, "--held-out", 0.1)
    code, out, err = electra(*prepare_it, "--length", "16,32")
    assert code == 0, err
    assert f"{shards / '16'}: prepared\n" in out
    assert f"{shards / '32'}: prepared\n" in out
    for wrong in ("16,x", "16,16", "16,4", ""):
        code, _, err = electra(*prepare_it, "--length", wrong)
        assert (code, err.count("\n")) == (2, 1), err
        assert "--length is" in err
    settings = (*QUICK, "data.seq_length=16,32@0.5")
    code, out, err = electra(
        *("pretrain", "toy", "--data", shards, "--out", run, "--budget", "20steps", *settings)
    )
    assert code == 0, err
    assert "Step 10: from here a step has 4 rows of 32 tokens." in out
    assert electra("evaluate", run, "--data", shards)[0] == 0
    code, out, err = electra("flops", "toy", "data.seq_length=16,32@0.5")
    assert code == 0, err
    assert "16 rows of 16, then 8 rows of 32 per step" in " ".join(out.split())
    code, _, err = electra("bench", "pretrain", "toy", "--data", shards, *settings)
    assert (code, err.count("\n")) == (2, 1)
    assert "takes one data.seq_length" in err


def test_from_text_to_answers(electra, corpus, tmp_path):
    tokenizer, shards, run = (tmp_path / name for name in ("tokenizer", "shards", "[run]"))
    code, _, err = electra("tokenizer", "train", corpus, "--out", tokenizer, "--vocab-size", 150)
    assert code == 0, err
    code, _, err = electra(
        *("prepare", corpus, "--tokenizer", tokenizer, "--out", shards),
        *("--length", 32, "--workers", 1, "--held-out", 0.1),
    )
    assert code == 0, err
    code, out, err = electra(
        *("pretrain", "toy", "--data", shards, "--out", run, "--budget", "20steps", *QUICK)
    )
    assert code == 0, err
    assert f"The model is in {run}/checkpoints/step-00000020" in out
    assert "Starting at step 0 on cpu in float32" in out

    code, out, _ = electra("evaluate", run, "--data", shards, "--rows", 32)
    assert code == 0
    assert "discriminator AUC" in out
    assert "[run]/checkpoints/step-00000020,held-outtext" in "".join(out.split())
    code, out, _ = electra("evaluate", run, "--data", shards, "--rows", 32, "--json")
    assert code == 0
    metrics = json.loads(out)
    assert 0 < metrics["auc"] < 1
    assert metrics["checkpoint"] == str(run / "checkpoints" / "step-00000020")

    code, out, _ = electra("detect", run, "the old farmer went to the oven .")
    assert code == 0
    assert out.splitlines()[0] == "the old farmer went to the oven ."
    lines = out.splitlines()[1:]
    code, out, _ = electra("detect", run, "the old farmer went to the oven .", "--json")
    assert [v["token"] for v in json.loads(out)] == [line.split()[1] for line in lines]

    code, out, _ = electra("fill", run, "the [MASK] farmer went to the [MASK] .", "--top", 3)
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("[MASK]")] == [
        "[MASK] 1",
        "[MASK] 2",
    ]
    assert len(out.splitlines()) == 2 * (1 + 3)
    code, out, _ = electra("fill", run, "the [MASK] .", "--json")
    assert [len(g) for g in json.loads(out)] == [5]

    code, out, _ = electra("report", run)
    assert code == 0
    assert out.splitlines() == [str(run / "report.png"), str(run / "report.html")]
    assert all(Path(line).stat().st_size > 1000 for line in out.splitlines())

    code, out, _ = electra("pretrain", "--resume", "--out", run)
    assert code == 0
    assert "Resuming at step 20" in out


def test_evaluate_agrees_with_the_run(electra, finished, data_folder):
    """The same rows, masks and weights as in the run's last validation."""
    last = checkpoint.checkpoints(finished)[-1]
    for place in (finished, last):
        _, out, _ = electra("evaluate", place, "--data", data_folder, "--rows", 16, "--json")
        metrics = json.loads(out)
        assert metrics.pop("checkpoint") == str(last)
        assert metrics == pytest.approx(checkpoint.read_state(last).held_out)


def test_what_is_no_number_is_null_in_json(electra, finished, data_folder, monkeypatch):
    """One held-out row may have no replaced token, and then there is no AUC."""
    found = (finished, {"auc": float("nan"), "loss": 1.0})
    monkeypatch.setattr("electra.train.evaluate.evaluate", lambda *asked: found)
    _, out, _ = electra("evaluate", finished, "--data", data_folder, "--json")
    assert "NaN" not in out
    assert json.loads(out)["auc"] is None


def test_a_polite_stop_is_no_error(electra, finished, monkeypatch):
    monkeypatch.setattr("electra.train.pretrain.resume", lambda *_, **__: 130)
    code, _, err = electra("pretrain", "--resume", "--out", finished)
    assert (code, err) == (130, "")


def test_a_start_without_room_leaves_nothing(refused, data_folder, tmp_path, monkeypatch):
    """So that the same command works when there is some again."""

    def full(source: Path, to: Path) -> None:
        (to / "half").mkdir(parents=True)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("electra.train.restore.copy_tokenizer", full)
    out = tmp_path / "out"
    assert "disk is full" in refused("pretrain", "toy", "--data", data_folder, "--out", out, *QUICK)
    assert not out.exists()


def test_the_tokenizer_beside_the_shards_is_theirs(refused, data_folder, other_data, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(data_folder, data)
    shutil.copytree(other_data / "tokenizer", data / "tokenizer", dirs_exist_ok=True)
    sentence = refused("pretrain", "toy", "--data", data, "--out", tmp_path / "out", *QUICK)
    assert "is not the tokenizer" in sentence
    assert not (tmp_path / "out").exists()


def test_recipes(electra):
    code, out, _ = electra("recipes")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(RECIPES)
    code, out, _ = electra("recipes", "paper.base", "optim.lr=1e-3")
    assert code == 0
    shown = from_yaml(PretrainConfig, out, "the output")
    assert shown.model.hidden == 768
    assert shown.optim.lr == 1e-3
    assert "# Peak learning rate." in out


def test_a_printed_recipe_can_be_trained(electra, data_folder, tmp_path):
    _, out, _ = electra("recipes", "toy", *QUICK)
    (tmp_path / "mine.yaml").write_text(out)
    code, _, err = electra(
        *("pretrain", tmp_path / "mine.yaml", "--data", data_folder),
        *("--out", tmp_path / "run", "--budget", "2steps"),
    )
    assert code == 0, err


@pytest.mark.parametrize(
    "settings",
    [
        ("objective.kind=mlm", "generator.tie=all"),
        ("objective.kind=mlm", "model.hidden=66", "model.heads=3"),  # no half of it has whole heads
        ("generator.kind=unigram", "model.hidden=66", "model.heads=3"),
    ],
)
def test_a_generator_that_is_not_built_is_not_refused(electra, settings, data_folder, tmp_path):
    """Neither where a run is counted nor where it is started."""
    code, _, err = electra("flops", "toy", *settings)
    assert code == 0, err
    place = ("--data", data_folder, "--out", tmp_path / "run", "--budget", "1steps")
    code, _, err = electra("pretrain", "toy", *QUICK, *settings, *place)
    assert code == 0, err


def test_nothing_to_measure_is_wrong_usage(electra, finished, data_folder):
    code, out, err = electra("evaluate", finished, "--data", data_folder, "--rows", 0)
    assert code == 2
    assert "--rows" in err
    assert "Traceback" not in err + out


def test_a_device_that_is_not_here(refused, data_folder, tmp_path):
    import torch

    absent = "mps" if not torch.backends.mps.is_available() else "cuda"
    sentence = refused(
        *("pretrain", "toy", "--data", data_folder, "--out", tmp_path / "out"),
        *(*QUICK, f"train.device={absent}"),
    )
    assert f"no '{absent}' device" in sentence
    assert not (tmp_path / "out").exists()


def test_a_run_is_not_overwritten(refused, finished, data_folder, tmp_path):
    command = ("pretrain", "toy", "--data", data_folder, *QUICK, "--out")
    assert "already holds a run: add --resume" in refused(*command, finished)
    (tmp_path / "letter.txt").write_text("dear")
    assert "not empty and holds no run" in refused(*command, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_resume_takes_no_settings(refused, finished):
    for change in (("toy", "optim.lr=1"), ("--budget", "5steps")):
        assert "keeps its settings" in refused("pretrain", "--resume", "--out", finished, *change)


def test_resume_starts_a_run_where_there_is_none(electra, data_folder, tmp_path):
    """So that a job that is started again and again needs one command only."""
    command = (
        *("pretrain", "toy", "--resume", "--data", data_folder, "--out", tmp_path / "run"),
        *QUICK,
    )
    code, out, err = electra(*command, "train.budget=2steps")
    assert code == 0, err
    assert "Starting at step 0" in out
    code, out, err = electra(*command, "train.budget=2steps")  # the very same line goes on
    assert code == 0, err
    assert "Resuming at step 2" in out


def test_a_run_goes_on_only_with_its_own_data(refused, finished, other_data):
    sentence = refused("pretrain", "--resume", "--out", finished, "--data", other_data)
    assert "prepared with another tokenizer than the run" in sentence


def test_evaluate_refuses_the_shards_of_another_tokenizer(refused, finished, other_data):
    sentence = refused("evaluate", finished, "--data", other_data)
    assert "prepared with another tokenizer" in sentence
    assert "--tokenizer" in sentence


@pytest.mark.parametrize("damage", ["cut", "altered", "missing"])
def test_a_damaged_shard_is_found_at_the_start(damage, refused, data_folder, tmp_path):
    """Also one flipped byte, which only its hash can show."""
    data = tmp_path / "data"
    shutil.copytree(data_folder, data)
    shard = data / Shards.open(data).shards[0].file
    whole = bytearray(shard.read_bytes())
    if damage == "cut":
        shard.write_bytes(whole[:-50])
    elif damage == "altered":
        whole[len(whole) // 2] ^= 1
        shard.write_bytes(whole)
    else:
        shard.unlink()
    sentence = refused("pretrain", "toy", "--data", data, "--out", tmp_path / "out", *QUICK)
    assert shard.name in sentence
    assert "electra prepare" in sentence
    assert not (tmp_path / "out").exists()


def test_shards_at_an_address(electra, refused, data_folder, tmp_path, monkeypatch):
    """A whole run with fsspec, its evaluation, report and resume, with the default cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, url = tmp_path / "run", data_folder.as_uri()
    start = ("pretrain", "toy", "--out", run, "--budget", "20steps", *QUICK)
    assert electra(*start, "--data", url)[0] == 0
    assert (run / "tokenizer" / "tokenizer.json").is_file()
    local = electra("evaluate", run, "--data", data_folder, "--json")
    assert electra("evaluate", run, "--data", url, "--json") == local
    assert electra("report", run)[0] == 0
    assert "No sample sentences" not in (run / "report.html").read_text()
    assert electra("pretrain", "--resume", "--out", run)[0] == 0
    assert electra("pretrain", "--resume", "--out", run, "--data", data_folder)[0] == 0
    start = ("pretrain", "toy", "--out", tmp_path / "other", *QUICK)
    assert "holds no token shards" in refused(*start, "--data", f"{url}/nothing")
    import fsspec

    fsspec.register_implementation("shop", "no_such_library.Files", errtxt="Install shopfs for it")
    assert "Install shopfs for it" in refused(*start, "--data", "shop://bucket/shards")
    assert "data.cache_gb=5.0 has no effect" in refused(
        *start, "--data", data_folder, "data.cache_gb=5"
    )


def test_a_vocabulary_without_a_mask_is_refused(refused, corpus, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "farmer"]
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("\n".join(words))
    sentence = refused(
        *("prepare", corpus, "--tokenizer", tmp_path / "tokenizer"),
        *("--out", tmp_path / "out", "--length", 32),
    )
    assert "has no [MASK] token" in sentence
    assert not (tmp_path / "out").exists()


def test_an_edited_run_is_told(refused, finished, tmp_path):
    """Other settings than the checkpoint's; a configuration that is none."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    config = run / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("hidden: 32", "hidden: 64"))
    assert "has model.hidden=64" in refused("pretrain", "--resume", "--out", run)
    config.write_text(text.replace("hidden: 32", "hiden: 32"))
    assert "did you mean" in refused("pretrain", "--resume", "--out", run)
    config.write_text("[")
    assert "not valid YAML" in refused("pretrain", "--resume", "--out", run)


def test_the_data_of_a_run_is_gone(refused, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    config = run / "config.yaml"
    folder = read_folder(config)
    config.write_text(config.read_text().replace(folder, str(tmp_path / "moved")))
    sentence = refused("pretrain", "--resume", "--out", run)
    assert "is not a folder of token shards any more" in sentence
    assert "--data" in sentence


def read_folder(config: Path) -> str:
    return from_yaml(PretrainConfig, config.read_text(), "config.yaml").data.folder


def test_missing_extras_are_named(electra, refused, finished, data_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'electra[plot]'" in refused("report", finished)
    monkeypatch.setitem(sys.modules, "wandb", None)
    command = ("pretrain", "toy", "--data", data_folder, "--out", tmp_path / "out", *QUICK)
    sentence = refused(*command, "--budget", "2steps", "train.logger=wandb")
    assert "pip install 'electra[wandb]'" in sentence
    code, _, err = electra(*command, "--budget", "2steps")  # the folder is free for what is right
    assert code == 0, err


def test_too_little_memory_is_told(refused, data_folder, tmp_path):
    out = tmp_path / "run"
    place = ("--data", data_folder, "--out", out)
    sentence = refused("pretrain", "toy", *QUICK, *place, "model.hidden=1000000000000")
    assert "out of memory" in sentence
    assert not out.exists()


def test_scores_while_it_trains(electra, refused, data_folder, reviews, tmp_path):
    run = tmp_path / "run"
    command = ("pretrain", "toy", "--data", data_folder, "--out", run, "--budget", "4steps", *QUICK)
    fast = ("train.checkpoint_every=2", "score_on.seeds=1", "score_on.finetune_epochs=0.2")
    told = refused(*command, "--score-task", "classify")
    assert "name its file with --score-on" in told
    told = refused(*command, "--score-on", reviews, "score_on.text=txt")
    assert "has no column 'txt'" in told
    assert not run.exists()
    code, out, err = electra(*command, *fast, "--score-on", reviews)
    assert code == 0, err
    assert "Scores: each checkpoint is fine-tuned on" in out
    assert "Step 2: accuracy" in out
    assert "best on reviews" in out.splitlines()[-1]
    code, out, err = electra("pretrain", "--resume", "--out", run)
    assert code == 0, err
    assert "Step 4: accuracy" not in out
    assert "best on reviews" in out.splitlines()[-1]
    code, out, err = electra("pretrain", "--resume", "--out", run, "score_on.data=")
    assert code == 0, err
    assert "best on" not in out
