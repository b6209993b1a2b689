"""`kill -9` at any moment: the same command goes on, and ends with the undisturbed result."""

import time

import pytest
from tests.torture.faults import kill
from tests.torture.jobs import check_clean, count, interfere

JOBS = ("prepare", "pretrain", "finetune", "export")


@pytest.mark.parametrize("name", JOBS)
def test_killed_at_random_times(name, jobs, undisturbed, tmp_path, dice, many, survived):
    """Again and again, until the command has ended between two kills; then from the start."""
    job, (_, wanted) = jobs[name], undisturbed(name)
    began = time.monotonic()
    assert job.run(tmp_path / "timed" / "out") == 0
    longest = time.monotonic() - began
    kills, wanted_kills, round_number = 0, many(2, 50), 0
    while kills < wanted_kills:
        out = tmp_path / str(round_number) / "out"
        while kills < wanted_kills and not job.is_finished(out):
            process = job.start(out)
            process.join(dice.uniform(0, longest))
            if process.exitcode is not None:
                assert process.exitcode == 0
                break
            process.kill()
            process.join()
            kills += 1
        job.finish(out)
        assert job.read(out) == wanted
        round_number += 1
    for _ in range(kills):
        survived()


@pytest.mark.parametrize("name", JOBS)
def test_killed_at_each_operation_on_files(name, jobs, undisturbed, tmp_path, dice, many, survived):
    """Before each rename, sync and deletion, and in the middle of each write."""
    job, (_, wanted) = jobs[name], undisturbed(name)
    assert job.run(tmp_path / "counted" / "out", count, tmp_path / "counted", tmp_path / "n") == 0
    operations = range(1, int((tmp_path / "n").read_text()) + 1)
    for at in sorted(dice.sample(operations, min(len(operations), many(2, 40)))):
        out = tmp_path / str(at) / "out"
        code = job.run(out, interfere, out.parent, at, kill)
        assert code in (-9, 0)  # a file that is opened, and filled by sendfile, gets no write
        job.finish(out)
        assert job.read(out) == wanted, at
        if code:
            survived()


def test_fifty_kills_leave_nothing_behind(jobs, undisturbed, tmp_path, dice, many, survived):
    """Of one run: each kill is in the first seconds, so that it does not come far."""
    job, (_, wanted) = jobs["pretrain"], undisturbed("pretrain")
    out = tmp_path / "killed" / "out"
    for _ in range(many(5, 50)):
        assert job.run(out, interfere, out.parent, dice.randrange(1, 30), kill) in (-9, 0)
        survived()
    job.finish(out)
    check_clean(out)
    assert job.read(out) == wanted
