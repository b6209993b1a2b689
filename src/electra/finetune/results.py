"""Results of fine-tuning: one line per seed in `results.jsonl`."""

import hashlib
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra.errors import UserError
from electra.files import sync
from electra.jsonl import read_jsonl, to_json
from electra.tasks.examples import Task

RESULTS = "results.jsonl"
Result = dict[str, Any]


def read_results(out: Path, name: str = RESULTS) -> list[Result]:
    """The results of the finished seeds."""
    return read_jsonl(out / name)


def add_result(out: Path, result: Result, name: str = RESULTS) -> None:
    """Append one line; it is on the disk when this returns."""
    path = out / name
    created = not path.exists()
    # A crash may have left half a line: start a new one.
    torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if torn else "") + to_json(result) + "\n")
        file.flush()
        os.fsync(file.fileno())
    if created:
        sync(out)


def check_same(
    out: Path,
    done: Iterable[Result],
    now: Mapping[str, Any],
    renamed: Mapping[str, str] | None = None,
) -> None:
    """Refuse to mix results of different settings, models or data.

    `renamed` maps names of settings in results of earlier versions to those of today.
    """
    renamed = renamed or {}
    for result in done:
        for key, value in now.items():
            if key == "settings":
                stored = result.get("settings", {})
                then = {renamed.get(name, name): setting for name, setting in stored.items()}
                changed = next((k for k in value if then.get(k) != value[k]), None)
                if changed is not None:
                    raise UserError(
                        f"{out} holds results with {changed}={then.get(changed)}, not "
                        f"{value[changed]}: choose another --out, or remove it."
                    )
            elif result.get(key) != value:
                what = "data set" if key == "data_digest" else key.split("_")[0]
                raise UserError(
                    f"{out} holds results of another {what}: choose another --out, or remove it."
                )


def rank(result: Result) -> tuple[bool, bool, float]:
    """The sort key for the best seed: seeds that diverged or failed come last."""
    return not result.get("diverged"), not result["failed"], float(result["score"])


def digest(task: Task) -> str:
    """A hash of all examples."""
    state = hashlib.blake2b(repr(task.labels).encode(), digest_size=8)
    for name, examples in task.splits.items():
        state.update(name.encode())
        for example in examples:
            state.update(repr(example).encode(errors="surrogatepass"))
    return state.hexdigest()


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Median, mean, spread and number of the seeds of one task."""
    scores = [float(r["score"]) for r in results]
    return {
        "task": results[0]["task"],
        "metric": results[0]["metric"],
        "median": statistics.median(scores),
        "mean": statistics.fmean(scores),
        "deviation": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        "lowest": min(scores),
        "highest": max(scores),
        "seeds": len(scores),
        "failed": [r["seed"] for r in results if r["failed"]],
    }
