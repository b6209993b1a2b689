"""Read a corpus of 1 T tokens: start, memory, time per batch, cursor.

    python benchmarks/large_corpus.py
    python benchmarks/large_corpus.py --latency 0.03

The shards are sparse files, which hold no bytes but have their full size, so that 2 TB fit on any
disk. What is measured is everything but the disk: opening, seeking, system calls, copying. With
--latency the same shards are read from a web server of another process that waits before it
answers, as an object store does.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from electra.text.shards import FORMAT, INDEX, TOKENIZER, Shards
from electra.train.data import DataConfig, open_shards, row_order, rows_at, stream

SERVER = Path(__file__).with_name("range_server.py")


def write_sparse(folder: Path, tokens: float, shards: int, length: int) -> int:
    """Write shards without content for so many tokens, and their index; return their size."""
    rows = int(np.ceil(tokens / length / shards))
    entry = {"rows": rows, "held_out": rows // 100, "tokens": rows * length, "sha256": "0" * 64}
    names = [f"shard-{number:05d}.bin" for number in range(shards)]
    for name in names:
        with (folder / name).open("wb") as file:
            file.truncate(rows * (length + 2) * 2)
    index = {
        "format": FORMAT,
        "length": length,
        "layout": "packed",
        "dtype": "uint16",
        "tokenizer": "none",
        "vocabulary_size": 30522,
        "shards": [{"file": name} | entry for name in names],
    }
    (folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
    (folder / TOKENIZER).mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / TOKENIZER / name).write_text("{}", encoding="utf-8")
    return shards * rows * (length + 2) * 2


def seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long an action takes, and its result."""
    begun = time.perf_counter()
    result = action()
    return time.perf_counter() - begun, result


def peak_mb() -> float:
    """Return the most memory that this process has used so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # kilobytes on Linux


def open_files() -> int:
    """Return the number of open files of this process; 0 where the system does not say."""
    return len(list(Path("/proc/self/fd").glob("*")))


def measure(location: str, args: argparse.Namespace) -> dict[str, Any]:
    """Open shards, read batches at random positions and in a row, and resume."""
    config = DataConfig(verify="off", cache_dir=str(args.cache), cache_gb=0.0)
    before = peak_mb()
    start, shards = seconds(lambda: open_shards(location, config))
    first, _ = seconds(lambda: rows_at(shards, 0, args.batch, 0))
    total = shards.rows("train")
    positions = np.random.default_rng(0).integers(0, 3 * total, args.seeks).tolist()
    seek = [seconds(partial(rows_at, shards, p, args.batch, 0))[0] for p in positions]
    batches = stream(shards, args.batch, 0, positions[0], torch.device("cpu"))
    next(batches)
    cpu, begun, count = time.process_time(), time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < args.seconds:
        next(batches)
        count += 1
    cpu = time.process_time() - cpu
    batches.close()
    return {
        "start_seconds": round(start, 3),
        "first_batch_seconds": round(first, 3),
        "batch_ms_at_random_positions": round(float(np.median(seek)) * 1e3, 2),
        "rows_per_second": round(count * args.batch / spent),
        "tokens_per_second": round(count * args.batch * shards.length / spent),
        "cpu_ms_per_batch": round(cpu / max(1, count) * 1e3, 2),
        "peak_memory_mb": round(peak_mb()),
        "memory_added_mb": round(peak_mb() - before),
        "open_files": open_files(),
        "resumed": resumes(shards, args.batch, positions[-1]),
    }


def resumes(shards: Shards, batch: int, position: int) -> dict[str, Any]:
    """Compare the rows after a cursor with those of a run that was not interrupted."""
    total = shards.rows("train")
    whole = row_order(total, position, 4 * batch, 0)
    found, order = seconds(lambda: row_order(total, position + 3 * batch, batch, 0))
    same = bool(np.array_equal(whole[-batch:], order))
    return {"cursor": position, "seek_ms": round(found * 1e3, 2), "same_rows": same}


def main() -> None:
    """Write the shards, measure, print JSON, remove the shards."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=float, default=1e12)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seeks", type=int, default=50, help="batches at random positions")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to read in a row")
    parser.add_argument("--latency", type=float, help="read from a web server this slow (seconds)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, args.cache = Path(scratch) / "shards", Path(scratch) / "cache"
        folder.mkdir()
        # In another process, so that its memory is not taken for that of reading
        with ProcessPoolExecutor(1, get_context("spawn")) as writer:
            sizes = (args.tokens, args.shards, args.length)
            size = writer.submit(write_sparse, folder, *sizes).result()
        about = {"tokens": args.tokens, "shards": args.shards, "terabytes": round(size / 1e12, 3)}
        if args.latency is None:
            print(json.dumps(about | measure(str(folder), args)))
            return
        command = [sys.executable, str(SERVER), str(folder), "--latency", str(args.latency)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                url = server.stdout.readline().strip()
                print(json.dumps(about | {"latency": args.latency} | measure(url, args)))
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
