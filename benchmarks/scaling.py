"""Predict data-parallel speed on 8, 64 and 512 GPUs from the speed of one.

    python benchmarks/scaling.py

Prints the tables of docs/scaling.md. The speed of one GPU is that of `records.csv`; link rates are
those that vendors state. Nothing here has been run on more than one GPU.
"""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from electra.models.flops import row_flops
from electra.models.paper_flops import PAPER_VOCABULARY
from electra.objectives.kinds import build
from electra.objectives.objective import VocabInfo
from electra.recipes import recipe
from electra.train.pretrain import row_workloads
from electra.train.settings import PretrainConfig

RECORDS = Path(__file__).with_name("records.csv")
GPUS = (8, 64, 512)
PER_MACHINE = 8
RATE_REACHED = 0.8
"""Share of a link's stated rate that large all-reduces are taken to reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The links of a GPU, in bytes per second and direction, and seconds per message."""

    name: str
    within: float
    between: float
    latency_within: float
    latency_between: float


NVLINK = Links(
    name="NVLink, 450 GB/s per GPU, and InfiniBand, 400 Gb/s per GPU",
    within=450e9,
    between=50e9,
    latency_within=3e-6,
    latency_between=10e-6,
)
ETHERNET = Links(
    name="PCIe, 25 GB/s per GPU, and Ethernet, 25 GB/s per machine of 8 GPUs",
    within=25e9,
    between=25e9 / PER_MACHINE,
    latency_within=5e-6,
    latency_between=30e-6,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A recipe on one GPU: a step takes `fixed + per_row * rows` seconds."""

    name: str
    batch: int
    length: int
    gradient_bytes: int
    generator_share: float
    """Share of the generator in a step's FLOPs."""
    fixed: float
    per_row: float
    batches: tuple[int, ...]
    """Batch sizes to predict: the paper's, and larger ones."""

    def compute(self, rows: float) -> float:
        """Seconds of a step with so many rows on one GPU."""
        return self.fixed + self.per_row * rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    gpus: int
    batch: int
    compute: float
    all_reduce: float
    tokens_per_second: float
    speedup: float
    """Over one GPU with the same batch."""

    @property
    def seconds(self) -> float:
        return self.compute + self.all_reduce

    @property
    def efficiency(self) -> float:
        return self.speedup / self.gpus


def all_reduce_seconds(size: float, gpus: int, links: Links) -> float:
    """Time of an all-reduce of `size` bytes: rings within machines, and between them.

    Each GPU reduces 1/8 of the tensor within its machine, sums it with the same eighth of the other
    machines, and gathers the rest again. Between many machines NCCL takes trees for their latency.
    """
    local = min(gpus, PER_MACHINE)
    machines = gpus // local
    within = 2 * (local - 1) / local * size / (RATE_REACHED * links.within)
    between = 2 * (machines - 1) / machines * size / local / (RATE_REACHED * links.between)
    latency = 2 * (local - 1) * links.latency_within
    return within + between + latency + 2 * math.log2(machines) * links.latency_between


def predict(size: Size, gpus: int, batch: int, links: Links) -> Prediction | None:
    """Predict a step; None if the batch has fewer rows than GPUs."""
    if batch < gpus:
        return None
    compute = size.compute(batch / gpus)
    all_reduce = all_reduce_seconds(size.gradient_bytes, gpus, links)
    seconds = compute + all_reduce
    return Prediction(
        gpus=gpus,
        batch=batch,
        compute=compute,
        all_reduce=all_reduce,
        tokens_per_second=batch * size.length / seconds,
        speedup=size.compute(batch) / seconds,
    )


def measured(name: str) -> dict[int, float]:
    """Seconds of a step by batch size: the newest record of `electra bench pretrain` for each."""
    found = {}
    with RECORDS.open(encoding="utf-8", newline="") as file:
        for record in csv.DictReader(file):
            figures = json.loads(record["figures"])
            if record["benchmark"] == f"pretrain {name}" and "H200" in record["hardware"]:
                _, median, _ = sorted(figures["tokens_per_second"])
                found[figures["batch"]] = figures["batch"] * figures["length"] / median
            elif record["benchmark"].startswith(f"bench pretrain {name}, 256 rows of 512"):
                found[256] = 256 * 512 / figures["electra"]
    return found


def fit(points: dict[int, float], fixed: float | None = None) -> tuple[float, float]:
    """Return the fixed time and that of a row, from the smallest and the largest batch.

    With one batch alone, `fixed` is given.
    """
    (rows, seconds), (more, longer) = min(points.items()), max(points.items())
    per_row = (longer - seconds) / (more - rows) if fixed is None else (seconds - fixed) / rows
    return seconds - per_row * rows, per_row


def sizes() -> list[Size]:
    """The paper's three sizes. Large has one measured batch: its fixed time is scaled from base."""
    found: list[Size] = []
    for name, more in (("small", (1024, 8192)), ("base", (2048, 8192)), ("large", (8192,))):
        config = recipe(f"paper.{name}")
        config = replace(config, model=replace(config.model, vocab_size=PAPER_VOCABULARY))
        phase = config.data.single_phase("scaling.py")
        length, batch = phase.seq_length, phase.batch_size
        gradient = gradient_bytes(config)
        points, fixed = measured(config.name), None
        if len(points) == 1:
            fixed = found[-1].fixed * gradient / found[-1].gradient_bytes
        fixed, per_row = fit(points, fixed)
        found.append(
            Size(
                name=config.name,
                batch=batch,
                length=length,
                gradient_bytes=gradient,
                generator_share=generator_share(config),
                fixed=fixed,
                per_row=per_row,
                batches=(batch, *more),
            )
        )
    return found


def gradient_bytes(config: PretrainConfig) -> int:
    """Bytes of the gradients in fp32; shared parameters count once."""
    with torch.device("meta"):
        networks = build(config.objective, config.model, config.generator, VocabInfo(0, ()))
    return 4 * sum(p.numel() for p in networks.parameters())


def generator_share(config: PretrainConfig) -> float:
    """Share of the generator in the FLOPs of a step."""
    length = config.data.lengths[0]
    works = row_workloads(config)
    return row_flops(works[:1], length) / row_flops(works, length)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first are numbers."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def speed_table(links: Links) -> str:
    """Predicted speed of each size, batch and number of GPUs."""
    header = (
        *("recipe", "batch", "GPUs", "rows per GPU", "compute, ms", "all-reduce, ms"),
        *("M tokens/s", "x one GPU", "efficiency"),
    )
    rows = []
    for size in sizes():
        for batch in size.batches:
            for gpus in GPUS:
                p = predict(size, gpus, batch, links)
                sizes_of_step = (f"`{size.name}`", f"{batch:,}", str(gpus))
                if p is None:
                    rows.append((*sizes_of_step, "none", *[""] * 5))
                    continue
                times = (f"{1e3 * p.compute:.1f}", f"{1e3 * p.all_reduce:.1f}")
                speed = (f"{p.tokens_per_second / 1e6:.1f}", f"{p.speedup:.1f}")
                per_gpu = f"{batch / gpus:g}"
                rows.append((*sizes_of_step, per_gpu, *times, *speed, f"{p.efficiency:.0%}"))
    return table(header, rows)


def overlap_table(links: Links) -> str:
    """What overlap could hide at most: behind the whole backward pass, or the generator's."""
    header = (
        *("recipe", "batch", "GPUs", "step, ms", "all-reduce, ms"),
        *("all hidden, ms", "behind the generator, ms", "gain"),
    )
    rows = []
    for size in sizes():
        for gpus in GPUS:
            p = predict(size, gpus, size.batch, links)
            if p is None:
                continue
            backward = 2 / 3 * p.compute
            whole = p.seconds - min(p.all_reduce, backward)
            part = p.seconds - min(p.all_reduce, backward * size.generator_share)
            times = (f"{1e3 * t:.1f}" for t in (p.seconds, p.all_reduce, whole, part))
            gain = f"{p.seconds / part - 1:.0%}"
            rows.append((f"`{size.name}`", f"{size.batch:,}", str(gpus), *times, gain))
    return table(header, rows)


def main() -> None:
    for size in sizes():
        fixed, per_row = 1e3 * size.fixed, 1e3 * size.per_row
        print(
            f"{size.name}: {fixed:.2f} ms + {per_row:.4f} ms per row of {size.length} tokens, "
            f"{size.gradient_bytes / 1e6:,.0f} MB of gradients; the generator is "
            f"{size.generator_share:.0%} of the FLOPs"
        )
    for links in (NVLINK, ETHERNET):
        print(f"\n{links.name}:\n\n{speed_table(links)}\n\nOverlap:\n\n{overlap_table(links)}")


if __name__ == "__main__":
    main()
