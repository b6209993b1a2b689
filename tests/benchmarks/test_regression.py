"""benchmarks/regression.py: golden curves, and comparisons of commits and layouts."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.regression import FLOORS, Arm, Golden, Run, compare, summarise, windows
from rich.console import Console
from typer.testing import CliRunner

from benchmarks import regression
from electra.errors import UserError
from electra.train import pretrain

FLAT = dict.fromkeys(FLOORS, [2.0] * 60)


@pytest.fixture
def in_process(monkeypatch, electra):
    """The commands of the working tree run here, which saves the imports."""

    def run(
        source: Path, *arguments: object, processes: int = 1, variables: tuple[str, ...] = ()
    ) -> str:
        assert (source, processes, variables) == (regression.ROOT / "src", 1, ())
        code, out, err = electra(*arguments)
        if code:
            raise UserError(err.removeprefix("error: "))
        return out

    monkeypatch.setattr(pretrain, "measure_peak", lambda *_: 1e12)
    monkeypatch.setattr(regression, "electra", run)


def invoke(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(regression.app, [str(argument) for argument in arguments])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


def golden(**spread: float) -> Golden:
    """Of two flat curves, `spread` apart in each loss."""
    other = {name: [2.0 + spread.get(name, 0.0)] * 60 for name in FLAT}
    return summarise([FLAT, other], "toy", {})


def test_the_golden_curve_of_the_cpu(in_process):
    """The losses of 300 steps are those of benchmarks/golden/cpu.json.

    After a change that is meant to change the training, record the file anew; its difference
    belongs into the commit.
    """
    code, out = invoke("check", "cpu")
    assert code == 0, out


@pytest.mark.gpu
def test_the_golden_curve_of_the_h200(in_process):
    if "H200" not in torch.cuda.get_device_name():
        pytest.skip("the curve is that of an H200")
    code, out = invoke("check", "h200")
    assert code == 0, out
    assert "fused encoder (CUDA)" in out


def test_stored_curves_are_whole():
    stored = regression.read_golden("cpu")
    assert stored.steps == 300
    for name, floor in FLOORS.items():
        assert len(stored.mean[name]) == len(stored.std[name]) == 30
        tolerance = stored.tolerance(name)
        assert tolerance[0] == floor, "the first steps repeat almost to the bit"
        assert floor < tolerance[-1] < (1 if name == "gradient_norm" else 0.02)
    # What is learned is more than what is tolerated
    for name in ("mlm_loss", "detection_loss"):
        first, last = stored.mean[name][0], stored.mean[name][-1]
        assert (first - last) / last > 5 * max(stored.tolerance(name))
    with pytest.raises(UserError, match="There is no device kind 'tpu', only cpu, h200"):
        invoke("record", "tpu")


def test_windows():
    values = [1.0] * 10 + [2.0] * 10 + [6.0]
    assert windows({"mlm_loss": values}) == {"mlm_loss": [1.0, 2.0, 6.0]}


def test_tolerance_is_five_standard_deviations():
    found = golden(mlm_loss=0.02)
    std, mean = 0.02 / 2**0.5, 2.01
    assert found.mean["mlm_loss"] == pytest.approx([mean] * 6)
    assert found.std["mlm_loss"] == pytest.approx([std] * 6, rel=1e-5)
    assert found.tolerance("mlm_loss") == pytest.approx([5 * std / mean] * 6, rel=1e-4)
    assert found.tolerance("detection_loss") == [8e-3] * 6, "never below the floor"
    # Neighbours count: the spread of one window is spread over five on each side
    one = replace(found, std={"mlm_loss": [0.0] * 9 + [std]}, mean={"mlm_loss": [mean] * 10})
    tolerance = one.tolerance("mlm_loss")
    assert tolerance[:4] == [4e-3] * 4
    assert tolerance[9] == pytest.approx(5 * std / mean / 6**0.5, rel=1e-4)


def test_compare():
    stored = golden(mlm_loss=0.02)
    limit = stored.tolerance("mlm_loss")[0]
    expected = windows(FLAT)
    inside = {**expected, "mlm_loss": [2.0] * 5 + [2.0 * (1 + 0.99 * limit)]}
    outside = {**expected, "mlm_loss": [2.0] * 5 + [2.0 * (1 + 1.01 * limit)]}
    assert compare(expected, expected, stored) == []
    assert compare(inside, expected, stored) == []
    (line,) = compare(outside, expected, stored)
    assert line.startswith("mlm_loss of steps 51 to 60 is 2.07")
    assert compare(outside, expected, stored, scale=1.1) == []
    assert len(compare({**expected, "mlm_loss": [float("nan")] * 6}, expected, stored)) == 6
    longer = {name: [2.0] * 9 for name in FLAT}
    assert compare(longer, longer, stored) == []
    assert len(compare({**longer, "mlm_loss": [2.0] * 8 + [3.0]}, longer, stored)) == 1


def test_describe():
    other = {**FLAT, "mlm_loss": [2.0] * 39 + [2.0002] * 21}
    console = Console(width=120, record=True, quiet=False)
    one, two = Run(FLAT, 50.0, "plain modules"), Run(other, 100.0, "fused Adam")
    assert regression.describe("a -> b", one, two, golden(), console)
    text = console.export_text()
    assert "mlm_loss differs from step 40, in a step by at most 0.01 %" in text
    assert "detection_loss differs nowhere" in text
    assert "speed: 2.00 times" in text
    assert "verdict: the same" in text
    assert "kernels: fused Adam, where the first has plain modules" in text
    two = replace(one, curves={**FLAT, "mlm_loss": [2.1] * 60})
    assert not regression.describe("a -> b", one, two, golden(), console)
    text = console.export_text()
    assert "kernels" not in text
    assert "mlm_loss of steps 1 to 10 is 2.1000, not 2.0000: 5.00% apart" in text
    assert "verdict: DIFFERENT" in text


def test_layouts(in_process):
    """Micro-batches change nothing, the learning rate does."""
    layouts = ("", "train.grad_accumulation=4", "optim.lr=2e-3")
    code, out = invoke("compare", *layouts, "--steps", 12, "--set", "train.device=cpu")
    assert code == 1
    assert re.findall(r"verdict: (\w+)", out) == ["the", "DIFFERENT"]
    assert ".  ->  . train.grad_accumulation=4" in out


def test_parse_layout():
    source = Path("src")
    assert regression.parse_layout("", "main", source) == Arm("main", source)
    layout = regression.parse_layout("torchrun 2 a=1 b=2", "main", source)
    assert layout == Arm("main torchrun 2 a=1 b=2", source, ("a=1", "b=2"), 2)
    for bad in ("torchrun", "torchrun two"):
        with pytest.raises(UserError, match="is not a layout"):
            regression.parse_layout(bad, ".", source)
    for alone in ((), ("torchrun 2",)):
        with pytest.raises(UserError, match="nothing to compare"):
            invoke("compare", *alone)


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """Two commits of a package `electra` that prints its number."""
    root = tmp_path / "repository"
    (root / "src" / "electra").mkdir(parents=True)
    (root / "src" / "electra" / "__init__.py").touch()
    monkeypatch.setattr(regression, "ROOT", root)
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    for number in (1, 2):
        code = f"import sys; print({number}, *sys.argv[1:]); sys.exit('fail' in sys.argv and 2)"
        (root / "src" / "electra" / "__main__.py").write_text(code)
        subprocess.run([*git, "add", "--all"], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", str(number)], check=True)
    return root


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_a_commit_runs_with_its_own_source(repository, tmp_path):
    sources = [regression.source_of(c, tmp_path / c) for c in ("HEAD~1", "HEAD", ".")]
    assert sources[2] == repository / "src"
    printed = [regression.electra(source, "a b", 1) for source in sources]
    assert printed == ["1 a b 1\n", "2 a b 1\n", "2 a b 1\n"]
    with pytest.raises(UserError, match="git finds no folder src in a commit 'missing'"):
        regression.source_of("missing", tmp_path / "missing")
    with pytest.raises(UserError, match="'electra fail' failed"):
        regression.electra(sources[0], "fail")


@pytest.mark.slow
def test_two_commits_and_two_processes():
    """With real processes; the commit is the one that is checked out."""
    code, out = invoke(
        "compare", "--commits", "HEAD", ".", "--steps", 6, "--set", "train.device=cpu"
    )
    assert code == 0, out
    code, out = invoke("compare", "", "torchrun 2", "--steps", 6, "--set", "train.device=cpu")
    assert code == 0, out
