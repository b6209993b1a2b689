"""Two processes write to the same folder: one of them does, and the result is whole."""

import time

import pytest
from tests.torture.jobs import said


@pytest.mark.parametrize("name", ["prepare", "pretrain", "finetune", "export"])
def test_two_at_once(name, jobs, undisturbed, tmp_path, dice, many, survived):
    job, (_, wanted) = jobs[name], undisturbed(name)
    for number in range(many(1, 10)):
        out = tmp_path / str(number) / "out"
        first = job.start(out)
        time.sleep(dice.uniform(0, 0.3) if number else 0)
        second = job.start(out)
        for process in (first, second):
            process.join()
        codes = {first.exitcode, second.exitcode}
        assert 0 in codes, said(out)
        assert codes <= {0, 2}, said(out)
        assert "Traceback" not in said(out)
        job.finish(out)
        assert job.read(out) == wanted
        survived()
