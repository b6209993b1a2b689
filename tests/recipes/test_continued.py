"""`electra pretrain --init-from` as a user has it: with a recipe, without one, and resumed."""

import shutil
from pathlib import Path

import pytest

from electra.hub.folders import read_config
from electra.recipes.continued import continued, from_sizes, settings_given
from electra.train import checkpoint
from electra.train.run_config import read_run_config

QUICK = ("train.device=cpu", "train.report_every=5", "train.validate_rows=16")
TINY = (
    *("model.layers=2", "model.hidden=32", "model.heads=0", "model.embedding=16"),
    *("model.max_positions=64", "data.seq_length=32", "data.batch_size=8"),
)


def test_without_a_recipe_a_run_continues_with_its_own_settings(
    electra, finished, data_folder, tmp_path
):
    out = tmp_path / "run"
    arguments = ("--data", data_folder, "--out", out, "--budget", "10steps")
    code, said, err = electra("pretrain", "--init-from", finished, *arguments, "data.batch_size=4")
    assert code == 0, err
    source = checkpoint.checkpoints(finished)[-1]
    assert f"Starting from {source}: discriminator" in said
    before, after = read_run_config(finished), read_run_config(out)
    assert (after.model, after.generator, after.name) == (before.model, before.generator, "tiny")
    assert after.init_from.model == str(source)
    assert after.optim.lr == before.optim.lr / 5
    assert after.data.batch_size == 4
    code, said, err = electra("pretrain", "--init-from", out, "--data", data_folder,
                              "--out", tmp_path / "next", "--budget", "5steps")  # fmt: skip
    assert code == 0, err
    assert read_run_config(tmp_path / "next").optim.lr == after.optim.lr  # not lower each time
    # The same command with --resume continues.
    code, said, err = electra("pretrain", "--init-from", finished, "--resume", *arguments)
    assert code == 0, err
    assert "Resuming at step 10" in said


def test_with_a_recipe_that_agrees(electra, refused, finished, data_folder, tmp_path):
    out = tmp_path / "run"
    start = ("pretrain", "toy", "--init-from", finished, "--data", data_folder, "--out", out)
    message = refused(*start)
    assert "model.layers=1, but" in message
    assert "model.layers=2" in message
    assert not out.exists()
    code, said, err = electra(*start, "--budget", "5steps", *TINY, *QUICK)
    assert code == 0, err
    assert read_run_config(out).optim.lr == pytest.approx(1.5e-3 / 5)
    code, said, err = electra(*start, "--budget", "5steps", *TINY, *QUICK, "--resume")
    assert code == 0, err
    assert "Resuming at step 5" in said
    message = refused(*start, "--budget", "5steps", *TINY, *QUICK, "optim.lr=1e-3", "--resume")
    assert "The run was started with optim.lr=0.0003" in message
    other = shutil.copytree(finished, tmp_path / "other")
    message = refused("pretrain", "--resume", "--out", out, "--init-from", other)
    assert "was started from" in message
    message = refused("pretrain", "--resume", "--out", finished, "--init-from", other)
    assert "was started from random weights" in message


def test_a_yaml_file_is_taken_as_it_is_written(electra, finished, data_folder, tmp_path):
    recipe = shutil.copyfile(finished / "config.yaml", tmp_path / "mine.yaml")
    code, _, err = electra("pretrain", recipe, "--init-from", finished, "--data", data_folder,
                           "--out", tmp_path / "run", "--budget", "5steps")  # fmt: skip
    assert code == 0, err
    assert read_run_config(tmp_path / "run").optim.lr == read_run_config(finished).optim.lr


def test_the_settings_that_the_user_gave():
    assert settings_given("toy", ["optim.lr=1", "data.folder=x=y"]) == {"optim.lr", "data.folder"}
    assert "optim.warmup" in settings_given("mine.yaml", [])


def test_without_a_recipe_a_folder_gives_its_sizes(finished, data_folder, tmp_path):
    source = checkpoint.checkpoints(finished)[-1]
    for name in ("discriminator", "generator"):
        shutil.copytree(source / name, tmp_path / "model" / name)
    config, given = continued(None, str(tmp_path / "model"), str(data_folder), "1h")
    assert given == set()
    assert config.name == "paper.small"  # the next in size
    sizes = read_config(source / "discriminator")
    for name in ("layers", "hidden", "heads", "embedding", "max_positions", "vocab_size"):
        assert getattr(config.model, name) == getattr(sizes, name)
    assert (config.generator.width, config.generator.depth) == (0.5, 1)
    assert config.generator.tie == "embeddings"
    assert (config.data.seq_length, config.model.vocab_multiple) == (32, 64)


def test_without_a_recipe_the_length_may_be_staged(
    electra, refused, finished, corpus, tokenizer_folder, tmp_path
):
    data = tmp_path / "staged"
    code, _, err = electra("prepare", corpus, "--tokenizer", tokenizer_folder,
                              "--out", data, "--length", "16,24,32", "--held-out", 0.1)  # fmt: skip
    assert code == 0, err
    out = tmp_path / "run"
    start = ("pretrain", "--init-from", finished, "--data", data, "--out", out)
    start = (*start, "--budget", "4steps", "data.batch_size=8", *QUICK)
    message = refused(*start)
    assert "staged holds rows of 16 and 24 and 32 tokens: set data.seq_length" in message
    assert not out.exists()
    code, _, err = electra(*start, message.split()[-1])  # the schedule that it suggests
    assert code == 0, err
    assert [phase.seq_length for phase in read_run_config(out).data.phases] == [16, 32]


def test_what_cannot_be_started(refused, finished, data_folder, tmp_path):
    source = checkpoint.checkpoints(finished)[-1]
    rest = ("--data", data_folder, "--out", tmp_path / "run")
    assert "--budget" in refused("pretrain", "--init-from", finished, *rest)
    rest = (*rest, "--budget", "5steps")
    message = refused("pretrain", "--init-from", source / "generator", *rest)
    assert "only a generator: name a recipe" in message
    assert "no model at" in refused("pretrain", "--init-from", tmp_path / "nothing", *rest)
    (tmp_path / "tf").mkdir()
    (tmp_path / "tf" / "model.ckpt.index").touch()
    message = refused("pretrain", "--init-from", tmp_path / "tf", *rest)
    assert "is a TensorFlow checkpoint: import it first" in message
    message = refused("pretrain", "--init-from", finished, "--out", tmp_path / "run")
    assert "--data" in message
    assert not (tmp_path / "run").exists()


def test_shards_in_a_folder_of_their_length(finished, data_folder, tmp_path):
    shutil.copytree(data_folder, tmp_path / "32")
    config, _ = continued(None, str(finished), str(tmp_path), "10steps")
    assert config.data.seq_length == 32
    (tmp_path / "32").rename(tmp_path / "16")
    config, _ = continued(None, str(finished), str(tmp_path), "10steps")
    assert config.data.seq_length == 16


def test_a_masked_language_model_is_continued_as_one(finished, tmp_path):
    source = checkpoint.checkpoints(finished)[-1] / "generator"
    shutil.copytree(source, Path(tmp_path / "mlm"))
    assert from_sizes(tmp_path).objective.kind == "mlm"
