"""A preparation in tasks: which text each has, and what a task leaves behind."""

import json
from pathlib import Path

import pytest

from electra.errors import UserError
from electra.text import encode
from electra.text.readers import RecordCounts
from electra.text.tasks import CHUNKS_PER_TASK, new_plan, number_chunks, run_task, task_journal


@pytest.fixture
def files(make_text, tmp_path) -> list[Path]:
    """Five files, most of several chunks."""
    paths = [tmp_path / f"{number}.txt" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_text(make_text(30 + 40 * number, seed=number) + "\n", encoding="utf-8")
    return paths


@pytest.fixture
def plan(run, files, tokenizer_folder, tmp_path):
    """A plan of two tasks over the five files, with small chunks."""
    return new_plan(
        files,
        tokenizer=tokenizer_folder,
        out=tmp_path / "task",
        length=32,
        layout="pairs",
        held_out=0.01,
        seed=1,
        text_field="text",
        tasks=2,
    )


def run_rank(plan, rank: int) -> list[encode.ChunkResult]:
    counts = RecordCounts()
    return list(run_task(plan, rank, plan.chunks_of(rank, lambda count: None, counts), counts))


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.bin")}


def test_each_task_has_every_nth_file(run, files, tmp_path):
    """The first task's shards are those of its files alone; the other's have numbers apart."""
    run("both", inputs=files, tasks=2)
    run("first", inputs=files[::2])
    both, first = shards(tmp_path / "both"), shards(tmp_path / "first")
    assert {k: v for k, v in both.items() if k in first} == first
    others = sorted(set(both) - set(first))
    assert others == [encode.shard_name(CHUNKS_PER_TASK + n) for n in range(len(others))]
    index = json.loads((tmp_path / "both" / "index.json").read_text())
    assert [s["file"] for s in index["shards"]] == sorted(first) + others
    assert index["request"]["tasks"] == 2


def test_tasks_are_the_same_for_any_number_of_workers(run, files, tmp_path, read_files):
    run("one", inputs=files, tasks=3, workers=1)
    run("two", inputs=files, tasks=3, workers=2)
    assert read_files(tmp_path / "one") == read_files(tmp_path / "two")


def test_one_task_is_recorded_as_before(run, files, tmp_path):
    """So that folders from before there were tasks are recognized as finished."""
    run("shards", inputs=files)
    assert "tasks" not in json.loads((tmp_path / "shards" / "index.json").read_text())["request"]


def test_other_number_of_tasks_is_refused(run, files):
    run("shards", inputs=files, tasks=2)
    with pytest.raises(UserError, match="different: tasks 2 there, 1 here"):
        run("shards", inputs=files)


@pytest.mark.parametrize(("tasks", "message"), [(0, "--tasks is 0"), (6, "there are 5: choose")])
def test_numbers_of_tasks_that_cannot_work(run, files, tmp_path, tasks, message):
    with pytest.raises(UserError, match=message):
        run("shards", inputs=files, tasks=tasks)
    assert not (tmp_path / "shards").exists()


def test_task_writes_the_shards_of_a_local_run(plan, run, files, tmp_path):
    run("local", inputs=files, tasks=2)
    for rank in (1, 0):
        run_rank(plan, rank)
    assert shards(tmp_path / "task") == shards(tmp_path / "local")


def test_interrupted_task_resumes(plan, tmp_path, monkeypatch, stopping):
    run_rank(plan, 0)
    whole, journal = shards(plan.folder), task_journal(plan.folder, 0).read_bytes()
    for path in [*plan.folder.glob("*.bin"), task_journal(plan.folder, 0)]:
        path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(encode, "encode_chunk", stopping(2))
        with pytest.raises(KeyboardInterrupt):
            run_rank(plan, 0)
    kept = {path: path.stat().st_mtime_ns for path in plan.folder.glob("*.bin")}
    assert len(kept) == 2
    run_rank(plan, 0)
    assert shards(plan.folder) == whole
    assert task_journal(plan.folder, 0).read_bytes() == journal
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())


def test_interrupted_tasks_are_completed_by_a_local_run(
    plan, run, files, tmp_path, monkeypatch, stopping, read_files
):
    run("local", inputs=files, tasks=2)
    run_rank(plan, 1)
    with monkeypatch.context() as patch:
        patch.setattr(encode, "encode_chunk", stopping(1))
        with pytest.raises(KeyboardInterrupt):
            run_rank(plan, 0)
    assert run("task", inputs=files, tasks=2).skipped > 2
    assert read_files(tmp_path / "task") == read_files(tmp_path / "local")


def test_chunks_of_a_longer_text_are_forgotten(plan, files):
    many = len(run_rank(plan, 0))
    files[4].write_text("a short text\n", encoding="utf-8")
    few = run_rank(plan, 0)
    assert 0 < len(few) < many
    lines = task_journal(plan.folder, 0).read_text().splitlines()
    assert len(lines) == 1 + len(few) + 1  # the request, the chunks, the end


def test_task_of_other_options_is_refused(plan, files, tokenizer_folder, tmp_path):
    run_rank(plan, 0)
    other = new_plan(
        files,
        tokenizer=tokenizer_folder,
        out=plan.folder,
        length=64,
        layout="pairs",
        held_out=0.01,
        seed=1,
        text_field="text",
        tasks=2,
    )
    with pytest.raises(UserError, match="length 32 there, 64 here"):
        run_rank(other, 0)


def test_a_task_has_its_own_numbers(monkeypatch):
    monkeypatch.setattr("electra.text.tasks.CHUNKS_PER_TASK", 2)
    monkeypatch.setattr("electra.text.readers.chunk_documents.__kwdefaults__", {"size": 1})
    assert [n for n, _ in number_chunks(["a", "b"], 3)] == [6, 7]
    with pytest.raises(UserError, match="more --tasks"):
        list(number_chunks(["a", "b", "c"], 3))
