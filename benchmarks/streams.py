"""Time three ways to fine-tune several seeds: in turn, on parallel CUDA streams, or stacked.

    python benchmarks/streams.py

    python benchmarks/streams.py --device cpu --layers 2 --hidden 32 --seeds 2 --steps 5

ELECTRA-Small with random weights, tokens and labels, and the step of `electra finetune`: on CUDA a
graph in bf16. 'in turn' trains one seed after the other; 'streams' gives each seed its own model,
optimizer, graph and CUDA stream; 'stack' is what `electra finetune` does. Rounds of all three
alternate; ms are for one step of all seeds. 'apart' checks that all do the same work: the distance
of the weights from those of 'in turn' after the first steps, relative to how far these have moved.
Rounding gives a small number; different work gives 1 or more.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from electra.device import choose_device, choose_precision, synchronize
from electra.finetune.batches import LENGTHS
from electra.finetune.fit import TrainStep, capture_cuda_graphs, eager_steps, layer_groups
from electra.finetune.kinds import make_kind
from electra.finetune.rows import rows_to_device
from electra.finetune.settings import FinetuneConfig
from electra.finetune.stack import DropoutRng, stack
from electra.hub.heads import TaskCard
from electra.models.encoder import Encoder, EncoderConfig
from electra.models.heads import TaskModel
from electra.optim.stacked import StackedAdam
from electra.tasks.examples import Features

KIND = make_kind(TaskCard(name="made", kind="classify", labels=["0", "1"]))
EXAMPLES = 1024
FIRST = 5
"""Steps before the clock starts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128], choices=LENGTHS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100, help="of each seed in one timing")
    parser.add_argument("--rounds", type=int, default=5, help="timings; the median counts")
    options = parser.parse_args()
    device = choose_device(options.device, "--device")
    if device.type != "cuda":
        print("No CUDA device: the steps are not graphs, and 'streams' is left out.")
    rows = []
    for length in options.lengths:
        rows += measure(Bench(options, length, device))
    print(f"{'':8} {'length':>6} {'ms':>8} {'lowest':>8} {'highest':>8} {'apart':>8}")
    for r in rows:
        print(
            f"{r['way']:8} {r['length']:6} {r['ms']:8} {r['lowest']:8} {r['highest']:8} "
            f"{r['apart']:8}"
        )
    name = torch.cuda.get_device_name() if device.type == "cuda" else str(device)
    print(json.dumps({**vars(options), "device": name, "torch": torch.__version__, "rows": rows}))


class Bench:
    """What all ways share: sizes, data, and the examples of each batch."""

    def __init__(self, options: argparse.Namespace, length: int, device: torch.device) -> None:
        self.options, self.length, self.device = options, length, device
        self.config = FinetuneConfig(lr=3e-4, layer_decay=0.8, batch_size=options.batch)
        self.sizes = EncoderConfig(layers=options.layers, hidden=options.hidden, vocab_size=30522)
        rng = np.random.default_rng(0)
        features = Features(
            input_ids=list(rng.integers(5, 30522, (EXAMPLES, length), dtype=np.int32)),
            segment_start=np.full(EXAMPLES, length, dtype=np.int32),
            labels=rng.integers(0, 2, EXAMPLES),
            example_index=np.arange(EXAMPLES),
        )
        self.rows = rows_to_device(features, 0, length, device)
        shape = (FIRST + options.steps, options.seeds, options.batch)
        self.members = torch.from_numpy(rng.integers(0, EXAMPLES, shape)).to(device)

    def network(self, seed: int) -> TaskModel:
        torch.manual_seed(seed)
        encoder = Encoder(self.sizes)
        return TaskModel(encoder, KIND.build_head(encoder))


class Seeds:
    """Some seeds that share one model, and their step."""

    def __init__(self, bench: Bench, seeds: Sequence[int], own_stream: bool = False) -> None:
        device, config = bench.device, bench.config
        self.length = bench.length
        self.index = bench.members[:, list(seeds)].flatten(1)
        rng = DropoutRng(seeds, device)
        self.model = stack([bench.network(s) for s in seeds], rng).to(device).train()
        self.begin = self.weights()
        groups, factors = layer_groups(self.model, config)
        self.rates = config.lr * torch.tensor(factors, device=device)
        optimizer = StackedAdam(groups, clip=config.clip)
        dtype = choose_precision("auto", device)
        step = TrainStep(self.model, optimizer, rng, bench.rows, KIND, config, device, dtype)
        self.stream = None
        if own_stream:
            # Captured on a stream of its own too: the workspace of cuBLAS belongs to the stream,
            # and graphs that run at the same time must not write to the same one. Nor to one pool
            # of memory; `capture_cuda_graphs` makes one each time.
            self.stream = torch.cuda.graph.default_capture_stream = torch.cuda.Stream()
        lengths = np.full(EXAMPLES, bench.length)
        graph = device.type == "cuda"
        self.take = (
            capture_cuda_graphs(step, lengths, bench.options.batch) if graph else eager_steps(step)
        )

    def step(self, number: int) -> None:
        with torch.cuda.stream(self.stream):  # None leaves it as it is
            self.take(self.index[number], self.length, self.rates)

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten(1) for p in self.model.parameters()], 1)


def measure(bench: Bench) -> list[dict[str, object]]:
    """Time each way in alternating rounds."""
    every, cuda = range(bench.options.seeds), bench.device.type == "cuda"
    ways = {"in turn": [Seeds(bench, [seed]) for seed in every]}
    if cuda:
        ways["streams"] = [Seeds(bench, [seed], own_stream=True) for seed in every]
    ways["stack"] = [Seeds(bench, every)]
    synchronize(bench.device)  # a new stream does not wait for the data
    for name, members in ways.items():
        run_steps(name, members, range(FIRST), bench.device)
    weights = {name: torch.cat([m.weights() for m in members]) for name, members in ways.items()}
    begin = ways["stack"][0].begin
    moved = (weights["in turn"] - begin).norm()
    apart = {name: ((w - weights["in turn"]).norm() / moved).item() for name, w in weights.items()}
    steps = range(FIRST, FIRST + bench.options.steps)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(bench.options.rounds):
        for name, members in ways.items():
            began = time.perf_counter()
            run_steps(name, members, steps, bench.device)
            times[name].append(1000 * (time.perf_counter() - began) / len(steps))
    return [
        {
            "way": name,
            "length": bench.length,
            "ms": round(statistics.median(ms), 3),
            "lowest": round(min(ms), 3),
            "highest": round(max(ms), 3),
            "apart": float(f"{apart[name]:.2g}"),
        }
        for name, ms in times.items()
    ]


def run_steps(name: str, members: list[Seeds], steps: range, device: torch.device) -> None:
    """Take these steps with every seed, and wait for the last one."""
    if name == "in turn":
        for member in members:
            for number in steps:
                member.step(number)
    else:
        for number in steps:
            for member in members:
                member.step(number)
    synchronize(device)


if __name__ == "__main__":
    main()
