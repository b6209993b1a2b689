"""Worker processes: they exit silently when the main process is gone."""

import os
import struct
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
