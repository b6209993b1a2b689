"""benchmarks/large_corpus.py in a tiny form: from the local disk and from a server."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "large_corpus.py"


@pytest.mark.parametrize("latency", [None, 0.001])
def test_a_small_large_corpus(latency, tmp_path):
    if latency:
        pytest.importorskip("aiohttp")
    options = ["--tokens", "1e9", "--shards", "300", "--seeks", "3", "--seconds", "0.3"]
    options += [] if latency is None else ["--latency", str(latency)]
    done = subprocess.run(
        [sys.executable, SCRIPT, *options],
        capture_output=True,
        text=True,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["shards"] == 300
    assert found["terabytes"] == pytest.approx(1e9 / 128 * 260 / 1e12, abs=6e-4)
    assert found["rows_per_second"] > 0
    assert found["resumed"]["same_rows"]
    assert not list(tmp_path.iterdir())  # 2 TB must not stay behind
