"""The disk is full at any write: one sentence, nothing lost, and later the same command works."""

import os
import shutil
import subprocess

import pytest
from tests.torture.faults import disk_full
from tests.torture.jobs import check_sentence, count, interfere, read_checkpoint, said

from electra.train import checkpoint

JOBS = ("prepare", "pretrain", "finetune", "export")


@pytest.mark.parametrize("name", JOBS)
def test_full_at_each_write(name, jobs, undisturbed, tmp_path, dice, many, survived):
    job, (_, wanted) = jobs[name], undisturbed(name)
    assert job.run(tmp_path / "counted" / "out", count, tmp_path / "counted", tmp_path / "n") == 0
    operations = range(1, int((tmp_path / "n").read_text()) + 1)
    for at in sorted(dice.sample(operations, min(len(operations), many(2, 60)))):
        out = tmp_path / str(at) / "out"
        code = job.run(out, interfere, out.parent, at, disk_full)
        if code:  # at the deletion of a file nothing is written
            assert code == 2, said(out)
            check_sentence(out, "disk is full")
            survived()
        job.finish(out)
        assert job.read(out) == wanted, at


@pytest.mark.parametrize("name", ["prepare", "pretrain", "export"])
def test_a_disk_that_is_really_small(name, jobs, undisturbed, tmp_path, many, survived):
    """Of more and more kilobytes, until the command fits: also what is not written by Python."""
    job, (folder, wanted) = jobs[name], undisturbed(name)
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) // 1024
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        out, tries = disk / "out", many(2, 12)
        for number in range(tries):
            space = f"remount,size={20 + size * number // tries}k"
            subprocess.run(["mount", "-o", space, str(disk)], check=True)
            code = job.run(out)
            if code == 0:
                break
            assert code == 2, said(out)
            check_sentence(out, "disk is full")
            if name == "pretrain" and out.exists():
                for saved in checkpoint.checkpoints(out):
                    read_checkpoint(saved)
            survived()
        subprocess.run(["mount", "-o", f"remount,size={8 * size + 4096}k", str(disk)], check=True)
        job.finish(out)
        assert job.read(out) == wanted
    finally:
        shutil.rmtree(disk / "out", ignore_errors=True)
        subprocess.run(["umount", str(disk)], check=True)
