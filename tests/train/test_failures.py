"""Ranks that fail inside the loop: the run resumes and ends with the weights of an undisturbed one.

The same bits, as the number of ranks is the same; dropout included.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.train.failures import inject
from tests.train.launching import pretrain_on_rank, tensors

from electra.config import override, to_yaml
from electra.train import checkpoint
from electra.train.metrics_log import read_metrics

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "many-gpus.md"
SETTINGS = (
    *("train.budget=10steps", "train.validate_every=5", "train.report_every=1"),
    *("train.checkpoint_every=4", "train.keep_last=1", "train.keep_best=false"),
)
FAILURES = {  # place, before or after it, how, rank, number of the call; the step to resume at
    "before a step": (("step", "before", "killed", 1, 7), 4),
    "after a step": (("step", "after", "killed", 0, 7), 4),
    "before the first checkpoint": (("step", "after", "killed", 1, 2), 0),
    "in the all-reduce": (("all-reduce", "before", "killed", 1, 6), 4),
    "during a save": (("write", "after", "killed", 0, 2), 4),
    "before the rename": (("rename", "before", "killed", 0, 2), 4),
    "after the rename": (("rename", "after", "killed", 0, 2), 8),
    "while another rank saves": (("save of another rank", "after", "killed", 1, 2), 8),
    "an error on one rank": (("step", "before", "error", 1, 7), 4),
    "an error during a save": (("rename", "before", "error", 0, 2), 4),
}


def with_failure(config, out: Path, *failure) -> int:
    inject(*failure)
    return pretrain_on_rank(config, out)


@pytest.fixture(scope="module")
def config(tiny):
    return override(tiny, SETTINGS)


@pytest.fixture
def undisturbed(config, launch, tmp_path_factory) -> Path:
    """The folder of a run of two ranks without a failure, made once."""
    out = tmp_path_factory.getbasetemp() / "undisturbed"
    if not out.exists():
        assert [code for code, _ in launch(2, pretrain_on_rank, config, out)] == [0, 0]
    return out


def check_same(out: Path, undisturbed: Path) -> None:
    """The last checkpoint and the metrics of two runs are the same to the last bit."""
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step-00000010"]
    for name in ("model", "optimizer", "random"):
        ours, theirs = tensors(out, name), tensors(undisturbed, name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items()), name
    ours, theirs = (
        [(m["kind"], m["step"], m["loss"]) for m in read_metrics(run) if "loss" in m]
        for run in (out, undisturbed)
    )
    assert ours == theirs


@pytest.mark.parametrize("name", FAILURES)
def test_a_run_with_a_failure_ends_like_one_without(name, config, undisturbed, launch, tmp_path):
    failure, step = FAILURES[name]
    out = tmp_path / "run"
    found = launch(2, with_failure, config, out, *failure)
    assert all(code for code, _ in found)  # the other rank does not go on alone, and does not hang
    assert step == max((int(p.name[-8:]) for p in checkpoint.checkpoints(out)), default=0)
    found = launch(2, pretrain_on_rank, config, out)
    assert [code for code, _ in found] == [0, 0]
    assert re.search(rf"(Starting|Resuming) at step {step} ", found[0][1])
    check_same(out, undisturbed)


def test_without_its_last_checkpoint_a_run_is_not_the_same(config, undisturbed, tmp_path):
    """`check_same` can fail."""
    other = shutil.copytree(undisturbed, tmp_path / "run")
    last = checkpoint.checkpoints(other)[-1]
    path = last / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(AssertionError):
        check_same(other, undisturbed)


SCRIPT = """
import os
from electra.cli import main
from electra.train import pretrain
from tests.train.failures import inject

pretrain.measure_peak = lambda *_: 1e12
failures = {failures}
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt < len(failures):
    inject(*failures[attempt])
main()
"""


def under_torchrun(config, folder: Path, names: list[str]) -> tuple[Path, str]:
    """Run the page's command with a failure in each attempt; return the run folder and output."""
    script, recipe, out = (folder / name for name in ("run.py", "tiny.yaml", "run"))
    script.write_text(SCRIPT.format(failures=[FAILURES[name][0] for name in names]))
    recipe.write_text(to_yaml(config))
    example = re.search(r"<!-- tested -->\n```bash\n(.*?)```", PAGE.read_text(), re.S)
    launcher, *words = shlex.split(example[1])
    assert launcher == "torchrun"
    mine = {
        **{"--nproc-per-node=8": "--nproc-per-node=2", "-m": "", "electra": script},
        # One more than failures: gloo's threads can abort a process (pytorch#190489)
        **{"--max-restarts=3": f"--max-restarts={len(names) + 1}"},
        **{"paper.base": recipe, "shards": config.data.folder, "runs/base": out},
    }
    arguments = [mine.get(word, word) for word in words]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *filter(None, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_torchrun_restarts_after_failures(config, undisturbed, tmp_path):
    """A rank is killed in the all-reduce, and after the restart the first one in a save."""
    names = ["in the all-reduce", "before the rename"]
    out, text = under_torchrun(config, tmp_path, names)
    assert re.findall(r"(?:Starting|Resuming) at step (\d+)", text)[:3] == ["0", "4", "8"]
    assert "Done: 10 steps" in text
    check_same(out, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAILURES)
def test_torchrun_restarts_after_each_failure(name, config, undisturbed, tmp_path):
    out, text = under_torchrun(config, tmp_path, [name])
    steps = ["0", str(FAILURES[name][1])]
    assert re.findall(r"(?:Starting|Resuming) at step (\d+)", text)[:2] == steps
    check_same(out, undisturbed)
