"""A long run of a toy: do memory, open files and speed stay flat?

    python benchmarks/soak.py --steps 100000 --out soak.json
    python benchmarks/soak.py --draw soak.json docs/soak.svg

The run is `electra pretrain toy` on invented text, in a process of its own on one thread, with
validations and checkpoints on the way. /proc has its memory (RSS), its open files, its threads and
its CPU time; `metrics.jsonl` has its step. Speed is given per second and per second of CPU time:
only the second is comparable when other processes use the same cores. Linux only.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from electra.files import write_atomic
from electra.text.prepare import prepare
from electra.text.tokenizer import train_tokenizer
from electra.train.metrics_log import read_metrics

EVERY = 500
"""Steps from one report to the next, and at least from one sample to the next."""
SETTINGS = (
    "data.seq_length=32",
    "data.batch_size=8",
    "model.hidden=64",
    "model.embedding=32",
    "optim.ema=0.999",
    "train.device=cpu",
    "train.threads=1",
    f"train.report_every={EVERY}",
    "train.validate_every=1000",
    "train.validate_rows=64",
    "train.checkpoint_every=2000",
)
Sample = dict[str, float]


def write_data(folder: Path) -> Path:
    """Invent text, train a tokenizer on it and write its shards."""
    dice = random.Random(0)
    lexicon = ["".join(dice.choices("aeioukrstmnlp", k=dice.randint(2, 8))) for _ in range(400)]
    documents = [
        "\n".join(" ".join(dice.choices(lexicon, k=12)) for _ in range(8)) for _ in range(2000)
    ]
    text = folder / "text.txt"
    text.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    train_tokenizer([text], folder / "tokenizer", vocab_size=512)
    prepare(
        [text],
        tokenizer=folder / "tokenizer",
        out=folder / "shards",
        length=32,
        workers=1,
        held_out=0.02,
    )
    return folder / "shards"


def sample(pid: int, run: Path, began: float) -> Sample | None:
    """What the process uses at its last reported step; None if it has ended."""
    process = Path(f"/proc/{pid}")
    steps = [line["step"] for line in read_metrics(run) if line["kind"] == "train"]
    try:
        status = dict(
            line.split(":", 1) for line in (process / "status").read_text().splitlines() if line
        )
        times = (process / "stat").read_text().rpartition(")")[2].split()
        files = len(list((process / "fd").iterdir()))
    except OSError:
        return None
    if "VmRSS" not in status:  # a zombie
        return None
    return {
        "step": steps[-1] if steps else 0,
        "seconds": round(time.monotonic() - began, 2),
        "cpu_seconds": (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK"),
        "rss_mb": round(int(status["VmRSS"].split()[0]) / 1024, 2),
        "files": files,
        "threads": int(status["Threads"]),
    }


def soak(steps: int, folder: Path) -> list[Sample]:
    """Train, and return what the process used from step to step."""
    data, run = write_data(folder), folder / "run"
    command = [sys.executable, "-c", "from electra.cli import main; main()", "pretrain", "toy"]
    options = ["--data", str(data), "--out", str(run), "--budget", f"{steps}steps"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began, samples = time.monotonic(), list[Sample]()
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [*command, *options, *SETTINGS], env=environment, stdout=output, stderr=output
        )
        while process.poll() is None:
            now = sample(process.pid, run, began)
            if now and now["step"] >= (samples[-1]["step"] if samples else 0) + EVERY:
                samples.append(now)
            time.sleep(0.5)
    if process.returncode:
        sys.exit((folder / "output.txt").read_text())
    return samples


def summarise(samples: list[Sample]) -> dict[str, Any]:
    """Compare the second tenth of the run, when all is warm, with its last tenth."""
    last = samples[-1]["step"]
    parts = {
        "early": [s for s in samples if 0.1 * last <= s["step"] <= 0.2 * last],
        "late": [s for s in samples if s["step"] >= 0.9 * last],
    }
    found: dict[str, Any] = {"steps": last, "samples": len(samples)}
    for name, part in parts.items():
        span = part[-1]["step"] - part[0]["step"]
        found[name] = {
            "rss_mb": round(statistics.median(s["rss_mb"] for s in part), 1),
            "files": statistics.median(s["files"] for s in part),
            "threads": statistics.median(s["threads"] for s in part),
            "steps_per_cpu_second": round(
                span / (part[-1]["cpu_seconds"] - part[0]["cpu_seconds"]), 1
            ),
            "steps_per_second": round(span / (part[-1]["seconds"] - part[0]["seconds"]), 1),
        }
    return found


def draw(samples: list[Sample], path: Path) -> None:
    """Memory, open files and speed over the steps, as an SVG."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "soak"  # the same bytes each time
    import matplotlib.pyplot as plt

    steps = [s["step"] / 1000 for s in samples]
    figure, (memory, files, speed) = plt.subplots(3, 1, sharex=True, figsize=(7, 5))
    memory.plot(steps, [s["rss_mb"] for s in samples])
    memory.set_ylabel("RSS, MB")
    files.plot(steps, [s["files"] for s in samples])
    files.set_ylabel("open files")
    window = max(1, len(samples) // 40)
    pairs = [*zip(samples[::window], samples[window::window], strict=False)]
    speed.plot(
        [b["step"] / 1000 for _, b in pairs],
        [(b["step"] - a["step"]) / (b["cpu_seconds"] - a["cpu_seconds"]) for a, b in pairs],
    )
    speed.set_ylabel("steps / CPU s")
    speed.set_xlabel("thousand steps")
    for axis in (memory, files, speed):
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=Path("soak.json"))
    parser.add_argument("--draw", type=Path, nargs=2, metavar=("JSON", "SVG"))
    options = parser.parse_args()
    if options.draw:
        source, target = options.draw
        draw(json.loads(source.read_text())["samples"], target)
        return
    with tempfile.TemporaryDirectory() as folder:
        samples = soak(options.steps, Path(folder))
    found = {"summary": summarise(samples), "samples": samples}
    write_atomic(options.out, (json.dumps(found, indent=1) + "\n").encode())
    print(json.dumps(found["summary"], indent=1))


if __name__ == "__main__":
    main()
