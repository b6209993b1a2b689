"""Time a pre-training step as a CUDA graph, and list the kernels that take the time.

    python benchmarks/step.py paper.small data.batch_size=1024 --launches launches.txt

The step alone, on random tokens, without data loading or reporting. The file lists every launch of
a step in order, with its start and duration in microseconds: gaps between launches and rows of
small ones do not show in a table of sums.
"""

import argparse
import statistics
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from electra.config import override
from electra.objectives.kinds import build
from electra.objectives.objective import VocabInfo
from electra.recipes import recipe
from electra.train.accelerate import describe_kernels
from electra.train.cuda_graph import GraphedStep, capture_cuda_graph
from electra.train.pretrain import build_step
from electra.train.settings import PretrainConfig

VOCAB_SIZE = 30522
RATE = 1e-5


def capture(config: PretrainConfig) -> tuple[GraphedStep, Tensor]:
    """The step of a recipe as a CUDA graph, and rows for it."""
    torch.manual_seed(0)
    model = replace(config.model, vocab_size=VOCAB_SIZE)
    objective = build(config.objective, model, config.generator, VocabInfo(4, range(5)))
    step = build_step(config, objective.cuda().train())
    phase = config.data.single_phase("This benchmark")
    length, batch = phase.seq_length, phase.batch_size
    print(f"Kernels: {describe_kernels(step.objective, step.micro_batch, length)}")
    rows = torch.randint(5, VOCAB_SIZE, (batch, length + 2), dtype=torch.int32, device="cuda")
    rows[:, -2:] = torch.tensor([length // 2, length])
    return capture_cuda_graph(step, rows), rows


def milliseconds(replay: GraphedStep, rows: Tensor, times: int) -> float:
    """Mean duration of a step."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        replay(rows, RATE)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / times


def launches(replay: GraphedStep, rows: Tensor) -> list[tuple[float, float, str]]:
    """Start, duration and name of every launch of the second of three steps."""
    with torch.profiler.profile(acc_events=True) as profile:  # else it warns
        for _ in range(3):
            replay(rows, RATE)
        torch.cuda.synchronize()
    on_device = [e for e in profile.events() if e.device_type.name == "CUDA"]
    on_device.sort(key=lambda e: e.time_range.start)
    count = len(on_device) // 3
    second = on_device[count : 2 * count]
    begun = second[0].time_range.start
    return [(e.time_range.start - begun, e.time_range.elapsed_us(), e.name) for e in second]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("settings", nargs="*", help="key=value")
    parser.add_argument("--launches", type=Path, help="write every launch of a step to this file")
    args = parser.parse_intermixed_args()
    if not torch.cuda.is_available():
        sys.exit("This needs a CUDA device.")
    config = override(recipe(args.recipe), args.settings)
    if config.data.document_mask:
        sys.exit("Rows of random tokens hold one document each: leave out data.document_mask.")
    replay, rows = capture(config)
    milliseconds(replay, rows, 20)  # warm
    times = [milliseconds(replay, rows, 30) for _ in range(5)]
    middle = statistics.median(times)
    tokens = len(rows) * (rows.shape[1] - 2) / middle / 1000
    print(f"{middle:.3f} ms ({min(times):.3f} to {max(times):.3f}), {tokens:.3f} M tokens/s")
    if not args.launches:
        return
    found = launches(replay, rows)
    lines = (f"{start:9.2f} {length:8.2f} {name}" for start, length, name in found)
    args.launches.write_text("\n".join(lines) + "\n")
    sums: defaultdict[str, float] = defaultdict(float)
    for _, length, name in found:
        sums[name] += length
    counts = Counter(name for _, _, name in found)
    print(f"{len(found)} launches, {sum(sums.values()) / 1000:.3f} ms within them")
    for name, length in sorted(sums.items(), key=lambda item: -item[1])[:20]:
        print(f"{length:8.1f} us  {counts[name]:3d} x {length / counts[name]:7.2f}  {name[:80]}")


if __name__ == "__main__":
    main()
