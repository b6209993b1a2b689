"""How much `electra prepare` costs beyond tokenising: both measured in one run.

    python benchmarks/prepare.py CORPUS... --megabytes 100 --tokenizer DIR

(a) the library's encode_batch alone on the same lines with the same cores, in sub-batches, and the
    same with encode_batch_fast, which leaves out the offsets and is the stricter measure;
(b) the command `electra prepare` with as many workers as cores, and the memory of its processes.
Processor seconds are told too: they hold on a machine that others use at the same time.
A row with the figures goes to benchmarks/records.csv.
"""

import argparse
import csv
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from electra.text.read import read_chunks
from electra.text.tokenizer import load_tokenizer, train_tokenizer

RECORDS = Path(__file__).parent / "records.csv"
COLUMNS = ("date", "benchmark", "commit", "hardware", "figures")
BATCH = 2000  # lines


def main() -> None:
    """Measure and record."""
    options = parse()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch) / "text.txt"
        size = take(options.corpus, text, options.megabytes * 1_000_000)
        folder = options.tokenizer or Path(scratch) / "tokenizer"
        if options.tokenizer is None:
            print("learning a vocabulary of 30522 tokens from a part of the text", flush=True)
            part = Path(scratch) / "part.txt"
            take([str(text)], part, 20_000_000)
            train_tokenizer([part], folder, vocab_size=30522)
        names = ("encode_batch", "encode_batch_fast", "prepare")
        wall: dict[str, list[float]] = {name: [] for name in names}
        work: dict[str, list[float]] = {name: [] for name in names}
        memory = 0
        for attempt in range(options.repeat):
            for name in names[:2]:
                seconds, cpu = tokenise(getattr(load_tokenizer(folder), name), text)
                wall[name].append(seconds)
                work[name].append(cpu)
            out = Path(scratch) / f"out{attempt}"
            seconds, cpu, peak = prepare(text, folder, out, cores, options.layout)
            wall["prepare"].append(seconds)
            work["prepare"].append(cpu)
            memory = max(memory, peak)
            print({name: round(wall[name][-1], 2) for name in names}, flush=True)
    figures: dict[str, object] = {
        "megabytes": round(size / 1e6, 1),
        "cores": cores,
        "layout": options.layout,
        "runs": options.repeat,
        "seconds": {name: round(min(wall[name]), 2) for name in names},
        "cpu_seconds": {name: round(min(work[name]), 2) for name in names},
        "overhead": ratio(wall, "encode_batch"),
        "overhead_to_fast": ratio(wall, "encode_batch_fast"),
        "cpu_overhead": ratio(work, "encode_batch"),
        "cpu_overhead_to_fast": ratio(work, "encode_batch_fast"),
        "megabytes_per_second": round(size / 1e6 / min(wall["prepare"]), 2),
        "peak_memory_mb": round(memory / 1e6),
    }
    record("prepare", figures)
    print(json.dumps(figures, indent=1))


def parse() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("corpus", nargs="+", help="text files or folders")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--tokenizer", type=Path, help="a folder; else one is trained")
    parser.add_argument("--layout", default="pairs")
    parser.add_argument("--repeat", type=int, default=1, help="the fastest of several counts")
    return parser.parse_args()


def take(inputs: list[str], out: Path, limit: int) -> int:
    """Write the first documents of the inputs to one file and return its size."""
    size = 0
    with out.open("w", encoding="utf-8") as file:
        for chunk in read_chunks(inputs, size=1_000_000):
            text = "\n\n".join(chunk) + "\n\n"
            file.write(text)
            size += len(text.encode())
            if size >= limit:
                break
    return size


def lines_of(path: Path) -> Iterator[list[str]]:
    """The lines of a file in sub-batches."""
    batch: list[str] = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line := line.strip():
                batch.append(line)
            if len(batch) == BATCH:
                yield batch
                batch = []
    yield batch


def ratio(times: dict[str, list[float]], base: str) -> float:
    """How much more the fastest preparation takes than the fastest run of the base."""
    return round(min(times["prepare"]) / min(times[base]) - 1, 3)


def tokenise(encode: Callable[..., object], path: Path) -> tuple[float, float]:
    """Seconds and processor seconds that the library alone needs for the lines on all cores."""
    seconds = cpu = 0.0
    for batch in lines_of(path):
        began, work = time.perf_counter(), time.process_time()
        encode(batch, add_special_tokens=False)
        seconds += time.perf_counter() - began
        cpu += time.process_time() - work
    return seconds, cpu


def prepare(
    text: Path, tokenizer: Path, out: Path, cores: int, layout: str
) -> tuple[float, float, int]:
    """Seconds, processor seconds and the largest memory of the command with all its processes."""
    command = [
        *(sys.executable, "-m", "electra.cli", "prepare", str(text)),
        *("--tokenizer", str(tokenizer), "--out", str(out)),
        *("--workers", str(cores), "--layout", layout),
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = [0]

    def watch() -> None:
        while process.poll() is None:
            peak[0] = max(peak[0], memory_of(process.pid))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    seconds = time.perf_counter() - began
    watcher.join()
    if code:
        raise SystemExit(f"electra prepare ended with {code}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, peak[0]


def memory_of(root: int) -> int:
    """Resident bytes of a process and all below it (shared pages count each time); Linux only."""
    folder = Path("/proc") / str(root)
    try:
        pages = int((folder / "statm").read_text().split()[1])
        children = (folder / "task" / str(root) / "children").read_text().split()
    except (OSError, IndexError):  # it has just ended
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(memory_of(int(child)) for child in children)


def hardware() -> str:
    """The processor and the number of cores."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        name = names[0].partition(":")[2].strip() if names else name
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def record(benchmark: str, figures: dict[str, object]) -> None:
    """Append a row to the records."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=RECORDS.parent,
    ).stdout.strip()
    new = not RECORDS.exists()
    with RECORDS.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(COLUMNS)
        date = datetime.date.today().isoformat()
        writer.writerow([date, benchmark, commit, hardware(), json.dumps(figures)])


if __name__ == "__main__":
    main()
