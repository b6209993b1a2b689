"""benchmarks/soak.py: it samples a real process, and compares the late run with the early one."""

import importlib.util
import os
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.fixture(scope="module")
def soak():
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_process_is_sampled(soak, tmp_path):
    if not Path("/proc/self/status").is_file():
        pytest.skip("needs /proc")
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 500}\n')
    found = soak.sample(os.getpid(), tmp_path, 0.0)
    assert found["step"] == 500
    assert 10 < found["rss_mb"] < 100_000
    assert found["files"] >= 3
    assert found["cpu_seconds"] > 0
    assert soak.sample(2**22 + 1, tmp_path, 0.0) is None


def test_growth_and_slowdown_are_seen(soak, tmp_path):
    samples = [
        {
            "step": 500 * n,
            "seconds": 2.0 * n,
            "cpu_seconds": float(n if n < 50 else 50 + 2 * (n - 50)),
            "rss_mb": 100.0 + n,
            "files": 5,
            "threads": 2,
        }
        for n in range(1, 101)
    ]
    found = soak.summarise(samples)
    assert found["early"] == {
        "rss_mb": 115.0,
        "files": 5,
        "threads": 2,
        "steps_per_cpu_second": 500.0,
        "steps_per_second": 250.0,
    }
    assert found["late"]["steps_per_cpu_second"] == 250.0
    assert found["late"]["rss_mb"] == 195.0
    pytest.importorskip("matplotlib")
    soak.draw(samples, tmp_path / "soak.svg")
    assert "<svg" in (tmp_path / "soak.svg").read_text()
