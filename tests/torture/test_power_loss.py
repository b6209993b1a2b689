"""The power fails after any operation on files: what is found then is whole, and the job goes on.

The sequence of operations is recorded once; then each moment is tried with what POSIX allows to be
on the disk: names and data since the last sync lost, names kept and data lost, or some of both.
"""

import pickle

import pytest
from tests.torture.faults import PowerLoss
from tests.torture.jobs import read_checkpoint, record, tree

from electra.text.shards import INDEX, Shards
from electra.train import checkpoint

KINDS = ("lost", "kept", "mixed")


@pytest.fixture
def history(jobs, tmp_path):
    """Every moment of a job, recorded."""

    def recorded(name: str, **options) -> list:
        folder, log = tmp_path / "recorded", tmp_path / "log"
        folder.mkdir()
        assert jobs[name].run(folder / "out", record, folder, log, **options) == 0
        return pickle.loads(log.read_bytes())

    return recorded


def is_whole(name: str, out, wanted) -> None:
    """What passes for finished is what an undisturbed job has written."""
    if name == "prepare" and (out / INDEX).exists():
        Shards.open(out)
    elif name == "pretrain":
        for found in checkpoint.checkpoints(out):
            assert read_checkpoint(found) == wanted[found.name], found
    elif name == "finetune" and (out / "model").exists():
        assert tree(out / "model") in wanted
    elif name == "export" and out.exists():
        assert tree(out) == wanted


@pytest.mark.parametrize("name", ["prepare", "pretrain", "finetune", "export"])
def test_nothing_half_written_passes_for_whole(
    name, jobs, undisturbed, history, tmp_path, dice, many, survived
):
    job, (_, whole) = jobs[name], undisturbed(name)
    keep = ("train.keep_last=9",) if name == "pretrain" else ()
    moments = history(name, more=keep)
    wanted = job.read(tmp_path / "recorded" / "out")
    if name == "pretrain":
        saved = checkpoint.checkpoints(tmp_path / "recorded" / "out")
        assert len(saved) == 3
        whole = {folder.name: read_checkpoint(folder) for folder in saved}
    elif name == "finetune":
        whole = models_of(moments)
    last = len(moments) - 1
    tries = [(at, kind) for at in range(len(moments)) for kind in KINDS]
    tries = dice.sample(tries, min(len(tries), many(40, 600)))
    resumed = set(dice.sample(tries, min(len(tries), many(1, 15))))
    for number, (at, kind) in enumerate([*tries, (last, "lost")]):
        folder = tmp_path / f"after-{number}"
        PowerLoss(moments, at).write(folder, kind, dice)
        is_whole(name, folder / "out", whole)
        if at == last:  # the command had ended: all is on the disk
            found = job.read(folder / "out")
            if name == "prepare":
                found.pop("journal.jsonl", None)  # it was deleted, which may not be on the disk
            assert found == wanted
        if (at, kind) in resumed:
            assert job.is_finished(folder / "out") or job.run(folder / "out", more=keep) == 0
            assert job.read(folder / "out") == wanted, (at, kind)
        survived()


def models_of(moments) -> list[dict[str, bytes]]:
    """Each model that the job has put in place, complete."""
    found = []
    data: dict[int, bytes] = {}
    for moment in moments:
        data |= moment.changed
        (top,) = [moment.folders[min(moment.folders)]]
        out = moment.folders.get(top.get("out", -1), {})
        model = moment.folders.get(out.get("model", -1))
        if model is not None:
            now = {name: data[number] for name, number in model.items()}
            if now not in found:
                found.append(now)
    return found
