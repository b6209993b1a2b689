"""Worker processes: a killed worker is noticed, and workers of a killed process exit silently."""

import os
import signal
import struct
import subprocess
import time
from multiprocessing import Pipe

import pytest

from electra.text.pool import run_worker


@pytest.mark.parametrize("sent", [b"", b"\0", struct.pack("!i", 1000), struct.pack("!i", 9) + b"x"])
def test_worker_exits_silently_when_the_pipe_breaks(sent):
    """The main process can be killed in the middle of a message."""
    here, there = Pipe()
    os.write(here.fileno(), sent)
    here.close()
    run_worker(there)


def worker_pids(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the process ids of the workers."""
    children = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(process.pid)],
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return [int(line.split()[0]) for line in children if "spawn_main" in line]


def test_killed_worker_is_reported(start, tmp_path, wait_for_shards):
    process = start("dead", 2)
    wait_for_shards(tmp_path / "dead", 2)
    process.send_signal(signal.SIGSTOP)  # or it could finish before the worker is killed
    os.kill(worker_pids(process)[0], signal.SIGKILL)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert b"UserError: A worker process ended unexpectedly" in errors
    assert not list((tmp_path / "dead").glob("*.tmp"))
    assert start("dead", 1).wait() == 0


@pytest.mark.parametrize("working", [False, True])
def test_workers_of_a_killed_process_exit_silently(start, tmp_path, working, wait_for_shards):
    """While they start and while they encode."""
    process = start("cut", 2, chunk=1_000_000)
    if working:
        wait_for_shards(tmp_path / "cut", 1)
    else:
        while len(worker_pids(process)) < 2 and process.poll() is None:
            time.sleep(0.01)
        time.sleep(0.2)  # Python's own start of a process is not silent
    process.kill()
    _, errors = process.communicate(timeout=30)  # until the workers have closed it, too
    assert errors == b""
