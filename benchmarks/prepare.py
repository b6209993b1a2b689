"""Compare the speed of `electra prepare` with the `tokenizers` library alone, in one run.

    python benchmarks/prepare.py CORPUS... --megabytes 500 --tokenizer DIR
    python benchmarks/prepare.py CORPUS... --check

It measures
(a) the library's `encode_batch` and `encode_batch_fast` (without offsets, the stricter baseline) on
    the same lines with the same cores;
(b) the whole command `electra prepare` with one worker per core, and the memory of its processes;
(c) on one core, the word cache, starting empty, against the library.
CPU seconds are reported too; they are reliable on a machine that is shared.
The results are appended to benchmarks/records.csv. With --check nothing is measured: the ids of
every line of every file are compared with the library's.
"""

import argparse
import csv
import datetime
import json
import math
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from electra.text.encode import encode_with_library, open_tokenizer
from electra.text.plain_text import read_texts
from electra.text.sources import find_sources
from electra.text.tasks import new_job
from electra.text.tokenizer import load_tokenizer, train_tokenizer
from electra.text.wordpiece_cache import WordPieceCache

RECORDS = Path(__file__).parent / "records.csv"
COLUMNS = ("date", "benchmark", "commit", "hardware", "figures")
BATCH = 2000  # lines
ONE_CORE_BYTES = 20_000_000  # text for the comparison on one core


def main() -> None:
    """Measure and record, or check."""
    options = parse()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder = options.tokenizer or train(options.corpus, scratch)
        if options.check:
            check(options.corpus, folder)
            return
        text = scratch / "text.txt"
        size = copy_text(options.corpus, text, options.megabytes * 1_000_000)
        results = measure(text, size, folder, scratch, options)
    record("prepare", results, options.records)
    print(json.dumps(results, indent=1))


def measure(
    text: Path, size: int, folder: Path, scratch: Path, options: argparse.Namespace
) -> dict[str, object]:
    """Return wall and CPU seconds of each method, the fastest of several runs."""
    cores = len(os.sched_getaffinity(0))
    names = ("encode_batch", "encode_batch_fast", "prepare")
    wall: dict[str, list[float]] = {name: [] for name in names}
    cpu_times: dict[str, list[float]] = {name: [] for name in names}
    memory = 0
    for attempt in range(options.repeat):
        for name in names[:2]:
            seconds, cpu = time_library(getattr(load_tokenizer(folder), name), text)
            wall[name].append(seconds)
            cpu_times[name].append(cpu)
        for again in range(2):  # short, so run it twice: the machine may be shared
            out = scratch / f"out{attempt}-{again}"
            seconds, cpu, peak = time_prepare(text, folder, out, cores, options.layout)
            shutil.rmtree(out)
            wall["prepare"].append(seconds)
            cpu_times["prepare"].append(cpu)
            memory = max(memory, peak)
        print({name: round(wall[name][-1], 2) for name in names}, flush=True)
    return {
        "megabytes": round(size / 1e6, 1),
        "cores": cores,
        "layout": options.layout,
        "runs": options.repeat,
        "seconds": {name: round(min(wall[name]), 2) for name in names},
        "cpu_seconds": {name: round(min(cpu_times[name]), 2) for name in names},
        "times_faster": ratios(wall),
        "cpu_times_faster": ratios(cpu_times),
        "one_core_times_faster": compare_one_core(text, folder),
        "megabytes_per_second": round(size / 1e6 / min(wall["prepare"]), 2),
        "peak_memory_mb": round(memory / 1e6),
    }


def train(corpus: list[str], scratch: Path) -> Path:
    """Train a tokenizer with 30522 tokens on a part of the text."""
    print("training a tokenizer with 30522 tokens on a part of the text", flush=True)
    part = scratch / "part.txt"
    copy_text(corpus, part, 20_000_000)
    train_tokenizer([part], scratch / "tokenizer", vocab_size=30522)
    return scratch / "tokenizer"


def check(corpus: list[str], folder: Path) -> None:
    """Compare the ids of every line of every file with the library's."""
    job = new_job(folder, Path("unused"), 128, "pairs", 0.01, 1)
    tokenizer = open_tokenizer(job)
    cache = WordPieceCache(tokenizer, job.dtype)
    for source in find_sources(corpus):
        tokens = 0
        for chunk in read_texts([source.name]):
            documents = list(map(str.encode, chunk))
            ids, lines = cache(documents)
            expected, counts = encode_with_library(tokenizer, job.dtype, documents)
            same = np.array_equal(ids, expected)
            # The library drops lines without tokens.
            same &= [[n for n in d if n] for d in lines] == [[n for n in d if n] for d in counts]
            if not same:
                raise SystemExit(f"{source.name}: ids differ from the library's")
            tokens += len(ids)
        print(f"{source.name}: {tokens:,} ids, the same", flush=True)


def compare_one_core(text: Path, folder: Path) -> dict[str, float]:
    """Return how many times faster than the library an empty word cache is on one core."""
    job = new_job(folder, Path("unused"), 128, "pairs", 0.01, 1)
    lines: list[str] = []
    for batch in lines_of(text):
        lines += batch
        if sum(map(len, batch)) * (len(lines) / BATCH) > ONE_CORE_BYTES:
            break
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = open_tokenizer(job)
    names = ("encode_batch", "encode_batch_fast")
    best = dict.fromkeys(("words", *names), math.inf)
    for _ in range(3):
        documents = [line.encode() for line in lines]
        cache = WordPieceCache(tokenizer, job.dtype)
        best["words"] = min(best["words"], cpu_seconds(cache, documents))
        for name in names:
            best[name] = min(best[name], cpu_seconds(in_batches, getattr(tokenizer, name), lines))
    del os.environ["TOKENIZERS_PARALLELISM"]
    return {name: round(best[name] / best["words"], 2) for name in names}


def in_batches(encode: Callable[..., object], lines: list[str]) -> None:
    """Encode all lines with the library."""
    for start in range(0, len(lines), BATCH):
        encode(lines[start : start + BATCH], add_special_tokens=False)


def cpu_seconds(function: Callable[..., object], *arguments: object) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("corpus", nargs="+", help="text files or folders")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer folder; default: train one")
    parser.add_argument("--layout", default="pairs")
    parser.add_argument(
        "--repeat", type=int, default=1, help="number of runs, of which the fastest counts"
    )
    parser.add_argument("--check", action="store_true", help="compare all ids, measure nothing")
    parser.add_argument("--records", type=Path, default=RECORDS, help="the table to append to")
    return parser.parse_args()


def copy_text(inputs: list[str], out: Path, limit: int) -> int:
    """Write the first documents of the inputs to one file and return its size."""
    size = 0
    with out.open("w", encoding="utf-8") as file:
        for chunk in read_texts(inputs, size=1_000_000):
            text = "\n\n".join(chunk) + "\n\n"
            file.write(text)
            size += len(text.encode())
            if size >= limit:
                break
    return size


def lines_of(path: Path) -> Iterator[list[str]]:
    """Yield the lines of a file in batches."""
    batch: list[str] = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line := line.strip():
                batch.append(line)
            if len(batch) == BATCH:
                yield batch
                batch = []
    yield batch


def ratios(times: dict[str, list[float]]) -> dict[str, float]:
    """Return how many times faster the fastest preparation is than the fastest library run."""
    best = {name: min(found) for name, found in times.items()}
    return {name: round(best[name] / best["prepare"], 2) for name in best if name != "prepare"}


def time_library(encode: Callable[..., object], path: Path) -> tuple[float, float]:
    """Return the wall and CPU seconds of the library alone on all cores."""
    seconds = cpu = 0.0
    for batch in lines_of(path):
        start, cpu_start = time.perf_counter(), time.process_time()
        encode(batch, add_special_tokens=False)
        seconds += time.perf_counter() - start
        cpu += time.process_time() - cpu_start
    return seconds, cpu


def time_prepare(
    text: Path, tokenizer: Path, out: Path, cores: int, layout: str
) -> tuple[float, float, int]:
    """Return wall seconds, CPU seconds and peak memory of the command with all its processes."""
    command = [
        *(str(Path(sys.executable).with_name("electra")), "prepare", str(text)),
        *("--tokenizer", str(tokenizer), "--out", str(out)),
        *("--workers", str(cores), "--layout", layout),
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = [0]

    def watch() -> None:
        while process.poll() is None:
            peak[0] = max(peak[0], memory_of(process.pid))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    seconds = time.perf_counter() - start
    watcher.join()
    if code:
        raise SystemExit(f"electra prepare ended with {code}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, peak[0]


def memory_of(root: int) -> int:
    """Return the resident bytes of a process and its children, shared pages counted each time."""
    folder = Path("/proc") / str(root)
    try:
        pages = int((folder / "statm").read_text().split()[1])
        children = (folder / "task" / str(root) / "children").read_text().split()
    except (OSError, IndexError):  # it has just exited, or this is not Linux
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(memory_of(int(child)) for child in children)


def hardware() -> str:
    """Return the CPU's name and the number of cores."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        name = names[0].partition(":")[2].strip() if names else name
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def record(benchmark: str, results: dict[str, object], records: Path) -> None:
    """Append a line to the records."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=RECORDS.parent,
    ).stdout.strip()
    new = not records.exists()
    with records.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(COLUMNS)
        date = datetime.date.today().isoformat()
        writer.writerow([date, benchmark, commit, hardware(), json.dumps(results)])


if __name__ == "__main__":
    main()
