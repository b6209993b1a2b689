"""`electra bench pretrain`: training speed of a recipe, compared with transformers."""

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from electra.config import override
from electra.device import (
    autocast,
    choose_device,
    choose_precision,
    measure_peak,
    synchronize,
)
from electra.errors import UserError, require
from electra.hub.folders import transformers_config
from electra.models.electra import generator_sizes
from electra.objectives.batch import unpack
from electra.objectives.corrupt import mask_tokens, scatter_tokens
from electra.text.shards import Shards
from electra.text.tokenizer import Vocabulary
from electra.train.data import stream
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import flops_per_row, resolve_data, start
from electra.train.settings import PretrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed and memory of one implementation."""

    tokens_per_second: float
    """Median over the measured intervals."""
    slowest: float
    fastest: float
    peak_share: float
    """FLOP/s of the step over those of a large matmul; both implementations count the same FLOPs,
    whatever they compute in addition."""
    memory_gib: float | None
    """Peak memory on a CUDA device, including the CUDA graph."""


def bench_pretrain(
    config: PretrainConfig, steps: int, peer_steps: int, console: Console
) -> dict[str, Speed]:
    """Measure electra, and transformers if `peer_steps` is not 0."""
    if config.objective.kind != "rtd":
        raise UserError("transformers has only objective.kind=rtd: leave out objective.kind.")
    phase = config.data.single_phase("electra bench pretrain")
    config, shards, vocab = resolve_data(config)
    device = choose_device(config.train.device)
    peak = measure_peak(device, choose_precision(config.train.precision, device))
    limit = peak / flops_per_row(config) * phase.seq_length
    speeds = {"electra": ours(config, steps, limit, console)}
    if peer_steps:
        speeds["transformers"] = theirs(config, peer_steps, limit, shards, vocab)
    return speeds


def ours(config: PretrainConfig, steps: int, limit: float, console: Console) -> Speed:
    """Measure an ordinary run by its reports, without the first third of them."""
    every = max(1, steps // 9)
    changes = [f"train.budget={steps}steps", f"train.report_every={every}"]
    changes += ["train.validate_every=1000000", "train.checkpoint_every=1000000"]
    reset_memory()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if start(override(config, changes), out, console):
            raise UserError("The run was stopped before it was measured.")
        lines = [line for line in read_metrics(out) if line["kind"] == "train"]
    lines = [line for line in lines if line["step"] % every == 0]  # the last one may have few steps
    return speed([line["tokens_per_second"] for line in lines[len(lines) // 3 :]], limit)


def theirs(
    config: PretrainConfig, steps: int, limit: float, shards: Shards, vocab: Vocabulary
) -> Speed:
    """Measure the same step with transformers' two classes.

    Eager, with SDPA, logits at every position and torch's fused AdamW, as in its documentation.
    """
    device = choose_device(config.train.device)
    dtype = choose_precision(config.train.precision, device)
    reset_memory()
    pair = build_peer(config, vocab.pad).to(device).train()
    optimizer = torch.optim.AdamW(pair.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    maskable = torch.ones(config.model.vocab_size, dtype=torch.bool, device=device)
    maskable[list(vocab.special)] = False
    rows = stream(shards, config.data.phases[0].batch_size, config.train.seed, 0, device)
    take = peer_step(pair, optimizer, maskable, vocab, config, dtype)
    return speed(list(timed(take, rows, steps, config, device)), limit)


def timed(
    take: Callable[[Tensor], None],
    rows: Iterator[Tensor],
    steps: int,
    config: PretrainConfig,
    device: torch.device,
) -> Iterator[float]:
    """Yield the tokens per second in each of three intervals, after some warm-up steps."""
    for _ in range(max(1, steps // 4)):
        take(next(rows))
    for _ in range(3):
        synchronize(device)
        began, count = time.perf_counter(), max(1, steps // 4)
        for _ in range(count):
            take(next(rows))
        synchronize(device)
        tokens = count * config.data.phases[0].batch_size * config.data.lengths[0]
        yield tokens / (time.perf_counter() - began)


def build_peer(config: PretrainConfig, pad_id: int) -> nn.ModuleDict:
    """Build transformers' generator and discriminator, with shared embeddings."""
    library: Any = require("transformers", "dev")
    kinds = {
        "discriminator": (library.ElectraForPreTraining, config.model),
        "generator": (library.ElectraForMaskedLM, generator_sizes(config.model, config.generator)),
    }
    pair = nn.ModuleDict()
    for name, (kind, sizes) in kinds.items():
        settings = transformers_config(sizes, kind.__name__, pad_id)
        pair[name] = kind(library.ElectraConfig(**settings))
    if config.generator.tie != "none":
        generator: Any = pair["generator"]
        tables: Any = pair["discriminator"].get_submodule("electra.embeddings")
        generator.electra.embeddings = tables
        generator.generator_lm_head.weight = tables.word_embeddings.weight
    return pair


def peer_step(
    pair: nn.ModuleDict,
    optimizer: torch.optim.Optimizer,
    maskable: Tensor,
    vocab: Vocabulary,
    config: PretrainConfig,
    dtype: torch.dtype,
) -> Callable[[Tensor], None]:
    """Return one step of the peer: mask, predict, sample, detect, update."""
    o = config.objective

    def take(rows: Tensor) -> None:
        ids, segments, attention_mask, *_ = unpack(rows)
        keys = torch.randint(2**62, (len(rows),), device=rows.device)
        masked = mask_tokens(
            ids,
            attention_mask,
            maskable,
            vocab.mask,
            keys,
            rate=o.mask_rate,
            mask_token_prob=o.mask_token_prob,
        )
        labels = torch.full_like(ids, -100)
        labels.scatter_(1, masked.positions, masked.labels.where(masked.is_masked, -100))
        shared = {"token_type_ids": segments, "attention_mask": attention_mask.long()}
        with autocast(rows.device, dtype):
            mlm = pair["generator"](input_ids=masked.inputs, labels=labels, **shared)
            index = masked.positions[..., None].expand(-1, -1, mlm.logits.shape[-1])
            probs = mlm.logits.detach().gather(1, index).float().softmax(-1)
            samples = probs.flatten(0, 1).multinomial(1).view_as(masked.positions)
            corrupted = scatter_tokens(ids, masked.positions, samples, masked.is_masked)
            replaced = (corrupted != ids).float()
            logits = pair["discriminator"](input_ids=corrupted, **shared).logits
        loss = F.binary_cross_entropy_with_logits(
            logits.float()[attention_mask], replaced[attention_mask]
        )
        (mlm.loss + o.discriminator_weight * loss).backward()
        nn.utils.clip_grad_norm_(pair.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return take


def speed(measured: list[float], limit: float) -> Speed:
    """Summarise intervals; `limit` is the tokens per second at the hardware's peak."""
    memory = None
    if torch.cuda.is_available():
        memory = torch.cuda.max_memory_allocated() / 2**30
    return Speed(
        tokens_per_second=statistics.median(measured),
        slowest=min(measured),
        fastest=max(measured),
        peak_share=statistics.median(measured) / limit,
        memory_gib=memory,
    )


def reset_memory() -> None:
    """Measure the peak of memory from here on."""
    gc.collect()  # frees what the run before left
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
