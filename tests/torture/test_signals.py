"""A storm of signals: one clean stop with a good checkpoint, whenever it comes."""

import os
import signal
import time
from contextlib import suppress

import pytest
from tests.torture.jobs import read_checkpoint, said

from electra.train import checkpoint
from electra.train.metrics_log import read_metrics

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def slow_save() -> None:
    """Give the storm time to hit a checkpoint that is being written."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    export = checkpoint.export_networks

    def slow(*given) -> None:
        export(*given)
        time.sleep(0.2)

    checkpoint.export_networks = slow


def test_a_storm_stops_once_and_saves(jobs, undisturbed, tmp_path, dice, many, survived):
    job, (_, wanted) = jobs["pretrain"], undisturbed("pretrain")
    for number in range(many(2, 25)):
        out = tmp_path / str(number) / "out"
        process = job.start(out, slow_save)
        while process.is_alive() and not read_metrics(out):
            time.sleep(0.002)
        time.sleep(dice.uniform(0, 0.6))
        sent = 0
        while process.is_alive() and not said(out).count("Stopped by"):
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(process.pid, dice.choice(SIGNALS))
                sent += 1
            time.sleep(dice.uniform(0, 0.02))
        process.join()
        text = said(out)
        assert "Traceback" not in text, text
        if sent and "Done" not in text:
            assert text.count("Stopped by") == 1, text
            saved = checkpoint.checkpoints(out)[-1]
            assert f"saved {saved}" in text
            read_checkpoint(saved)
            for _ in range(sent):
                survived()
        job.finish(out)
        assert job.read(out) == wanted


@pytest.mark.parametrize("name", ["prepare", "finetune", "export"])
def test_a_storm_ends_the_other_commands(name, jobs, undisturbed, tmp_path, dice, many, survived):
    """They continue with the same command."""
    job, (_, wanted) = jobs[name], undisturbed(name)
    for number in range(many(1, 10)):
        out = tmp_path / str(number) / "out"
        process = job.start(out)
        time.sleep(dice.uniform(0, 0.5))
        while process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, dice.choice(SIGNALS))
                survived()
            time.sleep(dice.uniform(0, 0.01))
        process.join()
        job.finish(out)
        assert job.read(out) == wanted
