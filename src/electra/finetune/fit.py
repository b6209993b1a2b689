"""Train several seeds of a task at the same time; on CUDA each step replays a graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from electra.device import autocast
from electra.errors import UserError
from electra.finetune.batches import Indices, padded_lengths, plan_epoch
from electra.finetune.kinds.base import TaskKind
from electra.finetune.rows import DeviceRows, rows_to_device
from electra.finetune.settings import FinetuneConfig
from electra.finetune.stack import DropoutRng, stack
from electra.models.heads import TaskModel
from electra.optim.adam import OptimConfig
from electra.optim.schedule import learning_rate
from electra.optim.stacked import StackedAdam
from electra.tasks.examples import Features

ProgressFn = Callable[[int, int], None]
"""Called with the number of finished steps and the total."""


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One training step of all stacked seeds."""

    model: TaskModel
    optimizer: StackedAdam
    dropout_rng: DropoutRng
    rows: DeviceRows
    kind: TaskKind
    config: FinetuneConfig
    device: torch.device
    dtype: torch.dtype

    def loss(self, index: Tensor, length: int) -> Tensor:
        """The loss of all seeds: they share no parameters, so one sum serves all."""
        self.dropout_rng.used = 0
        batch = self.rows.gather(index, length)
        # No cache of casts: a weight is used once, and a graph must not see another one's copies.
        with autocast(self.device, self.dtype, cache=False):
            hidden = self.model.encoder(batch.ids, batch.segments, batch.attention_mask)
            return self.kind.loss(self.model.head, hidden, batch, self.config)

    def __call__(self, index: Tensor, length: int, rates: Tensor) -> None:
        """Forward, backward and update."""
        self.loss(index, length).backward()
        self.optimizer.step(rates)
        for p in self.model.parameters():
            p.grad = None

    @torch.no_grad()
    def dropout_bytes(self, index: Tensor, length: int) -> int:
        """Random bytes that a step with rows of this length takes."""
        self.loss(index, length)
        return self.dropout_rng.used


def fit(
    networks: Sequence[TaskModel],
    features: Features,
    kind: TaskKind,
    config: FinetuneConfig,
    seeds: Sequence[int],
    *,
    pad_id: int,
    device: torch.device,
    dtype: torch.dtype,
    progress: ProgressFn = lambda done, total: None,
) -> TaskModel:
    """Train one network per seed; returns them as one stacked model."""
    dropout_rng = DropoutRng(seeds, device)
    model = stack(networks, dropout_rng).to(device).train()
    groups, factors = layer_groups(model, config)
    optimizer = StackedAdam(
        groups,
        weight_decay=config.weight_decay,
        clip=config.clip,
        bias_correction=config.bias_correction,
    )
    buckets = padded_lengths(example_lengths(features), model.encoder.config.max_positions)
    rows = rows_to_device(features, pad_id, int(buckets.max()), device)
    step = TrainStep(model, optimizer, dropout_rng, rows, kind, config, device, dtype)
    batch_size, total = count_steps(features, config)
    optim = OptimConfig(lr=config.lr, warmup=config.warmup)
    rates = torch.tensor([learning_rate(n / total, total, optim) for n in range(total)])
    rates = (rates[:, None] * torch.tensor(factors)).to(device)  # (steps, groups)
    cuda = device.type == "cuda"
    take_step = capture_cuda_graphs(step, buckets, batch_size) if cuda else eager_steps(step)
    per_example = features.rows_per_example
    done = 0
    while done < total:
        plan = plan_epoch(buckets, batch_size, list(seeds), done // (len(buckets) // batch_size))
        members = plan.members[..., None] * per_example + np.arange(per_example)
        index = torch.from_numpy(members.reshape(len(members), -1)).to(device)
        for length, rows_now in zip(plan.lengths, index, strict=True):
            take_step(rows_now, length, rates[done])
            done += 1
            if done % 20 == 0 or done == total:
                progress(done, total)
            if done == total:
                break
    return model.eval()


def count_steps(features: Features, config: FinetuneConfig) -> tuple[int, int]:
    """Examples per step, and the number of steps."""
    examples = len(features.input_ids) // features.rows_per_example
    batch_size = min(config.batch_size, examples)
    # differs from google-research/electra: it rounds the steps of an epoch up, not down.
    total = int(examples // batch_size * config.epochs)
    if not total:
        raise UserError(
            f"{config.epochs} epochs of {examples} examples are less than one step: set more "
            "epochs or a smaller batch_size."
        )
    return batch_size, total


def eager_steps(step: TrainStep) -> Callable[[Tensor, int, Tensor], None]:
    """Run the steps without graphs."""
    needed: dict[int, int] = {}

    def take_step(index: Tensor, length: int, rates: Tensor) -> None:
        if length not in needed:
            needed[length] = step.dropout_bytes(index, length)
        step.dropout_rng.draw(needed[length])
        step(index, length, rates)

    return take_step


def capture_cuda_graphs(
    step: TrainStep, buckets: Indices, batch_size: int
) -> Callable[[Tensor, int, Tensor], None]:
    """Capture the step as one CUDA graph per padded length; the graphs share their inputs.

    The step of a small network is a thousand kernels that each run shorter than their launch takes.
    """
    per_example = step.rows.rows_per_example
    count = batch_size * len(step.dropout_rng.seeds) * per_example
    index = torch.zeros(count, dtype=torch.int64, device=step.device)
    rates = torch.zeros(len(step.optimizer.groups), device=step.device)
    lengths = sorted({int(n) for n in buckets}, reverse=True)
    # Warm up with an example of that length: the target of a longer one may be out of range.
    samples = {n: example_rows(buckets, n, per_example, count) for n in lengths}
    needed = {n: step.dropout_bytes(rows.to(step.device), n) for n, rows in samples.items()}
    step.dropout_rng.draw(max(needed.values()))  # the graphs keep the address of the bytes
    pool = torch.cuda.graph_pool_handle()
    graphs = {}
    side = torch.cuda.Stream()
    for length in lengths:
        index.copy_(samples[length])
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries initialize outside the capture
            step(index, length, rates)
        torch.cuda.current_stream().wait_stream(side)
        graphs[length] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[length], pool=pool):
            step(index, length, rates)
    step.optimizer.reset()  # the warm-up had learning rate 0, but it changed Adam's moments
    step.dropout_rng.restart()

    def take_step(rows: Tensor, length: int, rate: Tensor) -> None:
        index.copy_(rows)
        rates.copy_(rate)
        step.dropout_rng.draw(needed[length])
        graphs[length].replay()

    return take_step


def example_rows(buckets: Indices, length: int, per_example: int, count: int) -> Tensor:
    """`count` rows: those of the first example with this padded length, repeated."""
    first = int(np.argmax(buckets == length))
    return (first * per_example + torch.arange(per_example)).repeat(count // per_example)


def example_lengths(features: Features) -> Indices:
    """The number of tokens of the longest row of each example."""
    tokens = np.array([len(row) for row in features.input_ids], dtype=np.int64)
    return tokens.reshape(-1, features.rows_per_example).max(1)


def layer_groups(
    model: TaskModel, config: FinetuneConfig
) -> tuple[list[list[nn.Parameter]], list[float]]:
    """The parameters grouped by depth, and the learning rate factor of each group."""
    top = len(model.encoder.layers) + 1
    by_depth: dict[int, list[nn.Parameter]] = {}
    for name, p in model.named_parameters():
        depth = 0  # the embeddings and their projection
        if name.startswith("encoder.layers."):
            depth = int(name.split(".")[2]) + 1
        elif name.startswith("head."):
            # google-research/electra still counts a pooler that was removed.
            depth = top + (config.layer_gap == "released")
        by_depth.setdefault(depth, []).append(p)
    highest = max(by_depth)
    factors = [config.layer_decay ** (highest - depth) for depth in by_depth]
    return list(by_depth.values()), factors
