"""How much faster `electra prepare` is than tokenising alone: measured in one run, in turns.

    python benchmarks/prepare.py CORPUS... --megabytes 500 --tokenizer DIR
    python benchmarks/prepare.py CORPUS... --check

(a) the library's encode_batch alone on the same lines with the same cores, in sub-batches, and the
    same with encode_batch_fast, which leaves out the offsets and is the stricter measure;
(b) the command `electra prepare` with as many workers as cores, everything included, and the
    memory of its processes;
(c) on one core: the words that are looked up, from nothing, against the library.
Processor seconds are told too: they hold on a machine that others use at the same time.
A row with the figures goes to benchmarks/records.csv. With --check nothing is measured: the ids
of every line of every file are compared with the library's.
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

from electra.text.encode import open_tokenizer, tokenised
from electra.text.prepare import new_job
from electra.text.read import read_chunks
from electra.text.sources import find_sources
from electra.text.tokenizer import load_tokenizer, train_tokenizer
from electra.text.wordcache import WordCache

RECORDS = Path(__file__).parent / "records.csv"
COLUMNS = ("date", "benchmark", "commit", "hardware", "figures")
BATCH = 2000  # lines
ALONE = 20_000_000  # bytes for the comparison on one core


def main() -> None:
    """Measure and record, or check."""
    options = parse()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder = options.tokenizer or learn(options.corpus, scratch)
        if options.check:
            check(options.corpus, folder)
            return
        text = scratch / "text.txt"
        size = take(options.corpus, text, options.megabytes * 1_000_000)
        figures = measure(text, size, folder, scratch, options)
    record("prepare", figures, options.records)
    print(json.dumps(figures, indent=1))


def measure(
    text: Path, size: int, folder: Path, scratch: Path, options: argparse.Namespace
) -> dict[str, object]:
    """The figures: seconds and processor seconds of each way, the fastest of several runs."""
    cores = len(os.sched_getaffinity(0))
    names = ("encode_batch", "encode_batch_fast", "prepare")
    wall: dict[str, list[float]] = {name: [] for name in names}
    work: dict[str, list[float]] = {name: [] for name in names}
    memory = 0
    for attempt in range(options.repeat):
        for name in names[:2]:
            seconds, cpu = tokenise(getattr(load_tokenizer(folder), name), text)
            wall[name].append(seconds)
            work[name].append(cpu)
        for again in range(2):  # short: each attempt has two, as others use the machine
            out = scratch / f"out{attempt}-{again}"
            seconds, cpu, peak = prepare(text, folder, out, cores, options.layout)
            shutil.rmtree(out)
            wall["prepare"].append(seconds)
            work["prepare"].append(cpu)
            memory = max(memory, peak)
        print({name: round(wall[name][-1], 2) for name in names}, flush=True)
    return {
        "megabytes": round(size / 1e6, 1),
        "cores": cores,
        "layout": options.layout,
        "runs": options.repeat,
        "seconds": {name: round(min(wall[name]), 2) for name in names},
        "cpu_seconds": {name: round(min(work[name]), 2) for name in names},
        "times_faster": ratios(wall),
        "cpu_times_faster": ratios(work),
        "one_core_times_faster": alone(text, folder),
        "megabytes_per_second": round(size / 1e6 / min(wall["prepare"]), 2),
        "peak_memory_mb": round(memory / 1e6),
    }


def learn(corpus: list[str], scratch: Path) -> Path:
    """A tokenizer with 30522 tokens from a part of the text."""
    print("learning a vocabulary of 30522 tokens from a part of the text", flush=True)
    part = scratch / "part.txt"
    take(corpus, part, 20_000_000)
    train_tokenizer([part], scratch / "tokenizer", vocab_size=30522)
    return scratch / "tokenizer"


def check(corpus: list[str], folder: Path) -> None:
    """Compare the ids of each line of each file with those of the library."""
    job = new_job(folder, Path("unused"), 128, "pairs", 0.01, 1)
    tokenizer = open_tokenizer(job)
    cache = WordCache(tokenizer, job.dtype)
    for source in find_sources(corpus):
        tokens = 0
        for chunk in read_chunks([source.name]):
            documents = list(map(str.encode, chunk))
            ids, lines = cache(documents)
            expected, counts = tokenised(tokenizer, job.dtype, documents)
            same = np.array_equal(ids, expected)
            # A line without tokens may be left out.
            same &= [[n for n in d if n] for d in lines] == [[n for n in d if n] for d in counts]
            if not same:
                raise SystemExit(f"{source.name}: other ids than the library's")
            tokens += len(ids)
        print(f"{source.name}: {tokens:,} ids, the same", flush=True)


def alone(text: Path, folder: Path) -> dict[str, float]:
    """How many times faster than the library the words are on one core, from nothing."""
    job = new_job(folder, Path("unused"), 128, "pairs", 0.01, 1)
    lines: list[str] = []
    for batch in lines_of(text):
        lines += batch
        if sum(map(len, batch)) * (len(lines) / BATCH) > ALONE:
            break
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = open_tokenizer(job)
    names = ("encode_batch", "encode_batch_fast")
    best = dict.fromkeys(("words", *names), math.inf)
    for _ in range(3):
        documents = [line.encode() for line in lines]
        cache = WordCache(tokenizer, job.dtype)
        best["words"] = min(best["words"], seconds_of(cache, documents))
        for name in names:
            best[name] = min(best[name], seconds_of(in_batches, getattr(tokenizer, name), lines))
    del os.environ["TOKENIZERS_PARALLELISM"]
    return {name: round(best[name] / best["words"], 2) for name in names}


def in_batches(encode: Callable[..., object], lines: list[str]) -> None:
    """Have the library tokenise all lines."""
    for start in range(0, len(lines), BATCH):
        encode(lines[start : start + BATCH], add_special_tokens=False)


def seconds_of(way: Callable[..., object], *arguments: object) -> float:
    """Processor seconds of one call."""
    began = time.process_time()
    way(*arguments)
    return time.process_time() - began


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
    parser.add_argument("--check", action="store_true", help="compare all ids, measure nothing")
    parser.add_argument("--records", type=Path, default=RECORDS, help="the table to add to")
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


def ratios(times: dict[str, list[float]]) -> dict[str, float]:
    """How many times the fastest preparation fits into the fastest run of the library."""
    best = {name: min(found) for name, found in times.items()}
    return {name: round(best[name] / best["prepare"], 2) for name in best if name != "prepare"}


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
        *(str(Path(sys.executable).with_name("electra")), "prepare", str(text)),
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


def record(benchmark: str, figures: dict[str, object], records: Path) -> None:
    """Append a row to the records."""
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
        writer.writerow([date, benchmark, commit, hardware(), json.dumps(figures)])


if __name__ == "__main__":
    main()
