"""Train the seeds of a task side by side; on CUDA each step is the replay of one graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from electra.device import autocast
from electra.errors import UserError
from electra.finetune.answer import loss
from electra.finetune.batches import Indices, padded_lengths, plan_epoch
from electra.finetune.rows import Rows, put_rows
from electra.finetune.settings import FinetuneConfig
from electra.finetune.stack import Noise, stack
from electra.models.heads import TaskModel
from electra.optim.schedule import OptimConfig, learning_rate
from electra.optim.stacked import StackedAdam
from electra.tasks.examples import Features, Kind

Told = Callable[[int, int], None]
"""Hears of the steps done and the steps in all."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Everything that one step needs."""

    model: TaskModel
    optimizer: StackedAdam
    noise: Noise
    rows: Rows
    kind: Kind
    options: int
    config: FinetuneConfig
    device: torch.device
    dtype: torch.dtype

    def losses(self, index: Tensor, length: int) -> Tensor:
        """The loss of all seeds; their parameters are apart, so one sum serves them all."""
        self.noise.used = 0
        batch = self.rows.pick(index, length)
        # No cache of casts: a weight is used once, and a graph must not see another one's copies.
        with autocast(self.device, self.dtype, cache=False):
            return loss(self.model, batch, self.kind, self.options, self.config.null_weight)

    def step(self, index: Tensor, length: int, rates: Tensor) -> None:
        """Forward, backward and update."""
        self.losses(index, length).backward()
        self.optimizer.step(rates)
        for p in self.model.parameters():
            p.grad = None

    @torch.no_grad()
    def bytes_needed(self, index: Tensor, length: int) -> int:
        """Random bytes that a step of this length takes."""
        self.losses(index, length)
        return self.noise.used


def fit(
    networks: Sequence[TaskModel],
    features: Features,
    kind: Kind,
    config: FinetuneConfig,
    seeds: Sequence[int],
    *,
    pad_id: int,
    device: torch.device,
    dtype: torch.dtype,
    progress: Told = lambda done, total: None,
) -> TaskModel:
    """One network per seed in, the trained stack of them out."""
    noise = Noise(seeds, device)
    model = stack(networks, noise).to(device).train()
    groups, factors = layer_groups(model, config)
    optimizer = StackedAdam(
        groups,
        weight_decay=config.weight_decay,
        clip=config.clip,
        bias_correction=config.bias_correction,
    )
    buckets = padded_lengths(example_lengths(features), model.encoder.config.max_positions)
    rows = put_rows(features, pad_id, int(buckets.max()), device)
    options = features.rows_per_example
    run = Fit(model, optimizer, noise, rows, kind, options, config, device, dtype)
    batch, total = steps(features, config)
    optim = OptimConfig(lr=config.lr, warmup=config.warmup)
    rates = torch.tensor([learning_rate(step / total, total, optim) for step in range(total)])
    rates = (rates[:, None] * torch.tensor(factors)).to(device)  # (steps, groups)
    take = captured(run, buckets, batch) if device.type == "cuda" else plain(run)
    done = 0
    while done < total:
        plan = plan_epoch(buckets, batch, list(seeds), done // (len(buckets) // batch))
        members = plan.members[..., None] * options + np.arange(options)
        index = torch.from_numpy(members.reshape(len(members), -1)).to(device)
        for length, now in zip(plan.lengths, index, strict=True):
            take(now, length, rates[done])
            done += 1
            if done % 20 == 0 or done == total:
                progress(done, total)
            if done == total:
                break
    return model.eval()


def steps(features: Features, config: FinetuneConfig) -> tuple[int, int]:
    """Examples per step, and the number of steps."""
    examples = len(features.input_ids) // features.rows_per_example
    batch = min(config.batch, examples)
    total = int(examples // batch * config.epochs)
    if not total:
        raise UserError(
            f"{config.epochs} epochs of {examples} examples are not one step: set more epochs or a "
            "smaller batch."
        )
    return batch, total


def plain(run: Fit) -> Callable[[Tensor, int, Tensor], None]:
    """Steps as they are written."""
    needed: dict[int, int] = {}

    def take(index: Tensor, length: int, rates: Tensor) -> None:
        if length not in needed:
            needed[length] = run.bytes_needed(index, length)
        run.noise.draw(needed[length])
        run.step(index, length, rates)

    return take


def captured(run: Fit, buckets: Indices, batch: int) -> Callable[[Tensor, int, Tensor], None]:
    """Steps as CUDA graphs, one for each padded length, that read their inputs from one place.

    A small network's step is a thousand kernels that each take less time than their launch.
    """
    count = batch * run.noise.bytes.shape[0] * run.options
    index = torch.zeros(count, dtype=torch.int64, device=run.device)
    rates = torch.zeros(len(run.optimizer.groups), device=run.device)
    sizes = sorted({int(n) for n in buckets}, reverse=True)
    # Trials are made with an example of that length: a longer one's target may lie outside.
    trials = {length: example_rows(buckets, length, run.options, count) for length in sizes}
    needed = {length: run.bytes_needed(t.to(run.device), length) for length, t in trials.items()}
    run.noise.draw(max(needed.values()))  # the graphs remember where the bytes are
    pool = torch.cuda.graph_pool_handle()
    graphs = {}
    side = torch.cuda.Stream()
    for length in sizes:
        index.copy_(trials[length])
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries set themselves up outside the capture
            run.step(index, length, rates)
        torch.cuda.current_stream().wait_stream(side)
        graphs[length] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[length], pool=pool):
            run.step(index, length, rates)
    run.optimizer.forget()  # the trials had rate 0, but Adam's means remember them
    run.noise.restart()

    def take(now: Tensor, length: int, rate: Tensor) -> None:
        index.copy_(now)
        rates.copy_(rate)
        run.noise.draw(needed[length])
        graphs[length].replay()

    return take


def example_rows(buckets: Indices, length: int, options: int, count: int) -> Tensor:
    """The rows of the first example of a padded length, as often as a batch has room for them."""
    first = int(np.argmax(buckets == length))
    return (first * options + torch.arange(options)).repeat(count // options)


def example_lengths(features: Features) -> Indices:
    """Tokens of each example: of its longest row where it has several."""
    tokens = np.array([len(row) for row in features.input_ids], dtype=np.int64)
    return tokens.reshape(-1, features.rows_per_example).max(1)


def layer_groups(
    model: TaskModel, config: FinetuneConfig
) -> tuple[list[list[nn.Parameter]], list[float]]:
    """The parameters by depth, and the share of the learning rate that each depth has."""
    top = len(model.encoder.layers) + 1
    by_depth: dict[int, list[nn.Parameter]] = {}
    for name, p in model.named_parameters():
        depth = 0  # the embeddings and their projection
        if name.startswith("encoder.layers."):
            depth = int(name.split(".")[2]) + 1
        elif name.startswith("head."):
            # The original counted a layer between body and head that had been removed.
            depth = top + (config.layer_gap == "released")
        by_depth.setdefault(depth, []).append(p)
    highest = max(by_depth)
    factors = [config.layer_decay ** (highest - depth) for depth in by_depth]
    return list(by_depth.values()), factors
