"""Compare `electra prepare` here with datatrove's executors around the same work, in one run.

    python benchmarks/cluster.py CORPUS... --tokenizer DIR

All have as many tasks as there are files and as many workers as there are cores:
(a) the command with its own worker processes, on the files and on the same documents as JSON lines;
(b) datatrove's executor for one machine with our step alone, which reads the files itself;
(c) the same with datatrove's reader of JSON lines before our step;
(d) the command on Ray, which it starts on this machine.
CPU seconds are reported too; they are reliable on a machine that is shared.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from electra.text.plain_text import read_texts
from electra.text.sources import find_sources

LOCAL = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from electra.text.datatrove_steps import WriteIndex, WriteShards
text, tokenizer, out, tasks, workers, reader = sys.argv[1:]
if __name__ == "__main__":
    inputs = [] if reader == "jsonl" else [text]
    shards = WriteShards(out, tokenizer=tokenizer, inputs=inputs, tasks=int(tasks))
    steps = [JsonlReader(text), shards] if reader == "jsonl" else [shards]
    logs = out + "-logs"
    LocalPipelineExecutor(steps, int(tasks), int(workers), logging_dir=logs + "/shards").run()
    LocalPipelineExecutor([WriteIndex(shards, tasks=int(tasks))], logging_dir=logs + "/index").run()
"""


def main() -> None:
    """Measure each way and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("corpus", nargs="+", help="text files or folders")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        size, tasks = copy_corpus(options.corpus, scratch)
        ways = commands(scratch, options.tokenizer.resolve(), str(tasks))
        for _ in range(options.repeat):
            for way, command in ways.items():
                seconds, cpu, memory = measure(command, scratch)
                figures = {
                    "way": way,
                    "megabytes": round(size / 1e6, 1),
                    "tasks": tasks,
                    "seconds": round(seconds, 1),
                    "cpu_seconds": round(cpu, 1),
                    "megabytes_per_second": round(size / 1e6 / seconds, 2),
                    "peak_memory_mb": round(memory / 1e6),
                }
                print(json.dumps(figures), flush=True)


def copy_corpus(corpus: list[str], scratch: Path) -> tuple[int, int]:
    """Write each file as text and as JSON lines; return the size of the text and the number."""
    size = 0
    sources = find_sources(corpus)
    for kind in ("text", "jsonl"):
        (scratch / kind).mkdir()
    for number, source in enumerate(sources):
        documents = [text for chunk in read_texts([source.name]) for text in chunk]
        text = "\n\n".join(documents) + "\n"
        (scratch / "text" / f"{number:04}.txt").write_text(text, encoding="utf-8")
        lines = "".join(json.dumps({"text": document}) + "\n" for document in documents)
        (scratch / "jsonl" / f"{number:04}.jsonl").write_text(lines, encoding="utf-8")
        size += len(text.encode())
    return size, len(sources)


def commands(scratch: Path, tokenizer: Path, tasks: str) -> dict[str, list[str]]:
    """Return the command of each way."""
    cores = str(len(os.sched_getaffinity(0)))
    out = str(scratch / "out")
    prepare = [sys.executable, "-m", "electra", "prepare", "--tokenizer", str(tokenizer)]
    prepare += ["--out", out, "--tasks", tasks]
    (scratch / "local.py").write_text(LOCAL, encoding="utf-8")
    local = [sys.executable, str(scratch / "local.py")]
    rest = [str(tokenizer), out, tasks, cores]
    text, jsonl = str(scratch / "text"), str(scratch / "jsonl")
    return {
        "prepare, text": [*prepare, "--workers", cores, text],
        "datatrove, our step alone": [*local, text, *rest, "text"],
        "Ray": [*prepare, "--executor", "ray", text],
        "prepare, JSON lines": [*prepare, "--workers", cores, jsonl],
        "datatrove, its reader": [*local, jsonl, *rest, "jsonl"],
    }


def measure(command: list[str], scratch: Path) -> tuple[float, float, int]:
    """Return wall seconds, CPU seconds and peak memory of a command with all its processes."""
    start = time.perf_counter()
    with (scratch / "log.txt").open("w") as log:
        process = psutil.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=scratch)
    cpu: dict[int, float] = {}
    peak = 0
    while process.poll() is None:
        memory = 0
        for each in [process, *process.children(recursive=True)]:
            try:
                times = each.cpu_times()
                memory += each.memory_full_info().uss
            except psutil.Error:
                continue
            cpu[each.pid] = times.user + times.system
        peak = max(peak, memory)
        time.sleep(0.1)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit((scratch / "log.txt").read_text())
    for folder in scratch.glob("out*"):
        shutil.rmtree(folder)
    return seconds, sum(cpu.values()), peak


if __name__ == "__main__":
    main()
