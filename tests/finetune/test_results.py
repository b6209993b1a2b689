"""`results.jsonl`: appending, comparing and ranking results."""

from dataclasses import replace

import pytest

from electra.errors import UserError
from electra.finetune.results import add_result, check_same, digest, rank, read_results
from electra.tasks.examples import Sentence, Task


def test_a_result_after_an_incomplete_line(tmp_path):
    add_result(tmp_path, {"seed": 0})
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"seed": 1, "sc')
    add_result(tmp_path, {"seed": 2})
    assert read_results(tmp_path) == [{"seed": 0}, {"seed": 2}]


def test_digest_depends_on_labels_splits_and_examples():
    one, two = Sentence(id="1", text="a", label=0), Sentence(id="2", text="b", label=1)
    task = Task(name="t", kind="classify", labels=("x", "y"), splits={"train": [one], "dev": [two]})
    assert digest(replace(task, name="other", warnings=("said",))) == digest(task)
    others = [
        replace(task, labels=("y", "x")),
        replace(task, splits={"train": [one], "test": [two]}),
        replace(task, splits={"train": [one, two], "dev": []}),
        replace(task, splits={"train": [one], "dev": [replace(two, label=0)]}),
    ]
    assert len({digest(each) for each in (task, *others)}) == 5


def test_check_same_knows_old_names():
    done = [{"task": "rte", "settings": {"batch": 8, "lr": 1e-4}}]
    now = {"task": "rte", "settings": {"batch_size": 8, "lr": 1e-4}}
    check_same("out", done, now, {"batch": "batch_size"})
    with pytest.raises(UserError, match="results with batch_size=None, not 8"):
        check_same("out", done, now)
    other = now | {"settings": {"batch_size": 16, "lr": 1e-4}}
    with pytest.raises(UserError, match="results with batch_size=8, not 16"):
        check_same("out", done, other, {"batch": "batch_size"})


def test_diverged_and_failed_seeds_rank_last():
    good = {"failed": False, "diverged": False, "score": 0.1}
    failed = {"failed": True, "score": 0.5}  # results of earlier versions do not have `diverged`
    diverged = {"failed": True, "diverged": True, "score": 0.9}
    assert max([diverged, failed, good], key=rank) is good
    assert max([diverged, failed], key=rank) is failed
