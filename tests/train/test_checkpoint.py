"""Checkpoints: whole or not at all, no pickle, and what is in them loads in transformers."""

import ast
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from electra.errors import UserError
from electra.models.encoder import RENAMED_PARAMETERS
from electra.text.shards import Shards
from electra.text.tokenizer import load_tokenizer, load_vocabulary
from electra.train import checkpoint
from electra.train.checkpoint import TrainState
from electra.train.pretrain import build_objective, resume, start
from electra.train.run_config import read_run_config

SOURCE = Path(checkpoint.__file__).parents[1]


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def restored(run: Path):
    """The networks of a run's last checkpoint, for asking."""
    config = read_run_config(run)
    objective = build_objective(config, load_vocabulary(run / "tokenizer"))
    checkpoint.restore(checkpoint.checkpoints(run)[-1], objective)
    return objective.eval()


def copied(run: Path, out: Path) -> tuple[Path, Path]:
    """A copy of a run that may be damaged, and its last checkpoint."""
    shutil.copytree(run, out)
    return out, checkpoint.checkpoints(out)[-1]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failure_in_the_middle_leaves_what_was_there(
    number, tiny, with_train, tmp_path, console, monkeypatch
):
    """The second checkpoint fails after its tensors are written; the first stays as it was."""
    out, original, calls = tmp_path / "run", checkpoint.export, []
    before: dict[str, bytes] = {}

    def export(*arguments):
        calls.append(arguments)
        if len(calls) > 2:  # two folders to a checkpoint
            before.update(content(out / "checkpoints" / "step-00000010"))
            raise OSError(number, os.strerror(number))
        original(*arguments)

    monkeypatch.setattr(checkpoint, "export", export)
    kind = OSError if number == errno.EIO else UserError
    with pytest.raises(kind):
        start(tiny, out, console)
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step-00000010"]
    assert content(out / "checkpoints" / "step-00000010") == before
    monkeypatch.undo()
    assert resume(out, console) == 0
    assert [p.name for p in checkpoint.checkpoints(out)] == ["step-00000010", "step-00000020"]


@pytest.mark.skipif(os.name == "nt", reason="no modes of files there")
@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_weights_may_be_read_by_whom_any_new_file_may(mask, tiny, tmp_path, console):
    """So that a folder that is handed on loads for whoever gets it; and no wider than that."""
    old = os.umask(mask)
    try:
        start(tiny, tmp_path / "run", console)
    finally:
        os.umask(old)
    modes = {p.stat().st_mode & 0o777 for p in (tmp_path / "run").rglob("*.safetensors")}
    assert modes == {0o666 & ~mask}


def test_a_full_disk_gives_one_sentence(finished, data_folder, tmp_path):
    """For real: the system refuses files above 40 kB, in the middle of writing the tensors."""
    out = tmp_path / "run"
    code = (
        "import resource, sys\n"
        "import electra.train.pretrain\n"
        "from electra.cli import run_app\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))\n"
        "sys.exit(run_app())"
    )
    recipe = finished / "config.yaml"
    command = ["pretrain", recipe, "--data", data_folder, "--out", out, "--budget", "3steps"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: The disk is full")
    assert f"electra pretrain --resume --out {out}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list((out / "checkpoints").iterdir())


@pytest.mark.parametrize(("keep_last", "keep_best"), [(1, False), (2, False), (2, True), (9, True)])
def test_the_last_and_the_best_are_kept(keep_last, keep_best, tmp_path):
    for step in range(1, 7):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    state = TrainState(best={"step": 2, "loss": 1.0})
    checkpoint.prune(tmp_path, state, keep_last=keep_last, keep_best=keep_best)
    kept = [int(p.name[5:]) for p in checkpoint.checkpoints(tmp_path)]
    expected = list(range(1, 7))[-keep_last:]
    assert kept == sorted({*expected, *([2] if keep_best else [])})
    assert len(list((tmp_path / "checkpoints").iterdir())) == len(kept)


def test_a_checkpoint_that_is_half_deleted_is_none(tmp_path, monkeypatch):
    for step in range(1, 4):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)

    def killed(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.prune(tmp_path, TrainState(), keep_last=1, keep_best=False)
    monkeypatch.undo()
    assert [p.name[-1] for p in checkpoint.checkpoints(tmp_path)] == ["2", "3"]
    checkpoint.clean(tmp_path)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_the_best_is_the_one_with_the_lowest_held_out_loss(
    tiny, with_train, tmp_path, console, monkeypatch
):
    from electra.train import loop

    losses = iter([5.0, 2.0, 3.0, 4.0])
    original = loop.validate
    monkeypatch.setattr(loop, "validate", lambda *a: original(*a) | {"loss": next(losses)})
    config = with_train(tiny, budget="8steps", checkpoint_every=2, keep_last=1, validate_every=99)
    start(config, tmp_path / "run", console)
    assert [p.name for p in checkpoint.checkpoints(tmp_path / "run")] == [
        "step-00000004",
        "step-00000008",
    ]
    last = checkpoint.read_state(checkpoint.checkpoints(tmp_path / "run")[-1])
    assert last.best == {"step": 4, "loss": 2.0, "seq_length": 32}


def test_no_pickle_anywhere(finished):
    endings = {p.suffix for p in finished.rglob("*") if p.is_file()}
    assert endings <= {".json", ".jsonl", ".yaml", ".safetensors", ""}, endings
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = []
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                named = [node.module or ""]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                named = [f"{node.value.id}.{node.attr}"]
            assert not {"pickle", "joblib", "dill", "torch.load", "torch.save"} & {*named}, path


@torch.no_grad()
def test_transformers_loads_both_folders_with_equal_logits(finished, data_folder):
    from transformers import AutoModel, ElectraForMaskedLM, ElectraForPreTraining

    from electra.objectives.batch import unpack

    objective = restored(finished)
    rows = Shards.open(data_folder).gather("held_out", torch.arange(12).numpy())
    ids, segments, original, *_ = unpack(torch.from_numpy(rows))
    assert not original.all()  # padding and
    assert segments.any()  # second segments are part of it
    given = {"input_ids": ids, "token_type_ids": segments, "attention_mask": original.long()}
    last = checkpoint.checkpoints(finished)[-1]

    theirs, found = ElectraForPreTraining.from_pretrained(
        last / "discriminator", output_loading_info=True
    )
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    ours = objective.discriminator(ids, segments, original)
    torch.testing.assert_close(
        ours[original], theirs.eval()(**given).logits[original], atol=1e-5, rtol=0
    )

    body = AutoModel.from_pretrained(last / "discriminator").eval()
    hidden = objective.discriminator.encoder(ids, segments, original)
    expected = body(**given).last_hidden_state
    torch.testing.assert_close(hidden[original], expected[original], atol=1e-5, rtol=0)

    theirs, found = ElectraForMaskedLM.from_pretrained(last / "generator", output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    expected = theirs.eval()(**given).logits
    places = torch.arange(ids.shape[1]).expand_as(ids)
    ours = objective.generator(ids, segments, original, places)[..., : expected.shape[-1]]
    torch.testing.assert_close(ours[original], expected[original], atol=1e-5, rtol=0)


def test_both_folders_have_the_shared_tables(finished):
    """Words, positions, segments and their LayerNorm; the projections are each network's own."""
    last = checkpoint.checkpoints(finished)[-1]
    one, two = (load_file(last / n / "model.safetensors") for n in ("discriminator", "generator"))
    tables = {name for name in one if name.startswith("electra.embeddings.")}
    assert len(tables) == 5
    for name in tables:
        assert torch.equal(one[name], two[name]), name
    project = "electra.embeddings_project.weight"
    assert one[project].shape == (32, 16)
    assert project not in two  # there the tables are as wide as the layers


@pytest.mark.parametrize("network", ["discriminator", "generator"])
def test_the_tokenizer_beside_the_weights_encodes_as_prepare_did(
    network, finished, data_folder, corpus
):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(checkpoint.checkpoints(finished)[-1] / network)
    ours = load_tokenizer(data_folder / "tokenizer")
    lines = [line for line in corpus.read_text().splitlines() if line][:40]
    for first, second in zip(lines[::2], lines[1::2], strict=True):
        encoded, expected = theirs(first, second), ours.encode(first, second)
        assert encoded["input_ids"] == expected.ids
        assert encoded["token_type_ids"] == expected.type_ids
    vocab = load_vocabulary(data_folder / "tokenizer")
    assert theirs.mask_token_id == vocab.mask
    assert theirs.pad_token_id == vocab.pad
    row = Shards.open(data_folder).gather("train", torch.arange(1).numpy())[0]
    total = row[-1]
    pieces = theirs.convert_ids_to_tokens(row[:total].tolist())
    assert (pieces[0], pieces[total - 1]) == ("[CLS]", "[SEP]")


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"]
)
@pytest.mark.parametrize("damage", ["cut", "missing", "empty"])
def test_a_damaged_checkpoint_is_named(name, damage, finished, tmp_path, console):
    out, last = copied(finished, tmp_path / "run")
    if damage == "missing":
        (last / name).unlink()
    else:
        whole = (last / name).read_bytes()
        (last / name).write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"")
    with pytest.raises(UserError, match=f"checkpoint {last} cannot be read"):
        resume(out, console)
    shutil.rmtree(last)  # what the sentence advises
    assert resume(out, console) == 0
    again, before = content(last), content(checkpoint.checkpoints(finished)[-1])
    assert again.keys() == before.keys()
    del again["state.json"], before["state.json"]  # it has the time in it
    assert again == before


def test_a_checkpoint_of_another_model_is_refused(finished, tmp_path, console):
    out, last = copied(finished, tmp_path / "run")
    weights = load_file(last / "model.safetensors")
    name = "discriminator.score.weight"
    save_file(weights | {name: weights[name][:, :1].contiguous()}, last / "model.safetensors")
    with pytest.raises(UserError, match=f"{name}.* shape"):
        resume(out, console)
    del weights[name]
    save_file(weights, last / "model.safetensors")
    with pytest.raises(UserError, match=f"{name} is missing in one of them"):
        resume(out, console)


def test_what_a_killed_process_left_is_cleaned(finished, tmp_path):
    out, last = copied(finished, tmp_path / "run")
    (last.parent / ".step-00000030.partial" / "generator").mkdir(parents=True)
    checkpoint.clean(out)
    assert sorted(p.name for p in last.parent.iterdir()) == ["step-00000010", "step-00000020"]


def test_a_checkpoint_with_old_parameter_names_restores(tiny, tmp_path, console):
    out = tmp_path / "run"
    start(tiny, out, console)
    expected = restored(out).state_dict()
    last = checkpoint.checkpoints(out)[-1]
    old_names = {new: old for old, new in RENAMED_PARAMETERS.items()}
    renamed = set()
    for file in ("model.safetensors", "optimizer.safetensors"):
        stored = {}
        for name, tensor in load_file(last / file).items():
            parts = name.split(".")
            renamed |= old_names.keys() & set(parts)
            stored[".".join(old_names.get(part, part) for part in parts)] = tensor
        save_file(stored, last / file)
    assert renamed == old_names.keys()
    found = restored(out).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert resume(out, console) == 0  # reads the optimizer's moments, too


@pytest.mark.parametrize(
    "text",
    ["[]", "5", "[" * 10_000, '{"step": "1"}', '{"rows_of_length": [1]}', '{"best": {"step": "x"}}',
     '{"rows_of_length": {"a": 1}}', '{"unknown": 1}', '{"step": 1e400}'],
)  # fmt: skip
def test_a_hostile_state_is_refused(text, tmp_path):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.read_state(tmp_path)


@pytest.mark.parametrize("state", [torch.zeros(3), torch.zeros(5, dtype=torch.uint8)])
def test_a_hostile_random_state_is_refused(state, tmp_path):
    save_file({"cpu": state}, tmp_path / "random.safetensors")
    with pytest.raises(UserError, match="cannot be read"):
        checkpoint.restore_random_state(tmp_path)
