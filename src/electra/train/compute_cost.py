"""What a recipe costs, by the paper's rules and by what the hardware does; needs no data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from electra.models.electra import Generator
from electra.models.encoder import Encoder
from electra.models.flops import Workload, row_flops
from electra.models.paper_flops import (
    BERT_BASE,
    ELECTRA_SMALL,
    MODELS,
    PAPER_VOCABULARY,
    paper_row_flops,
)
from electra.objectives.kinds import build
from electra.objectives.objective import VocabInfo
from electra.train.data import check_positions
from electra.train.headline import parameter_counts
from electra.train.pretrain import phase_steps, row_workloads
from electra.train.settings import PretrainConfig


def paper_costs() -> list[dict[str, Any]]:
    """Return the FLOPs of the paper's models, as published and as computed."""
    return [
        {
            "model": model.name,
            "train_published": model.train,
            "train": model.train_flops(),
            "inference_published": model.inference,
            "inference": model.inference_flops(),
        }
        for model in MODELS
    ]


def recipe_cost(config: PretrainConfig) -> dict[str, Any]:
    """Return sizes, steps and FLOPs of a recipe."""
    notes = []
    if not config.model.vocab_size:
        config = replace(config, model=replace(config.model, vocab_size=PAPER_VOCABULARY))
        notes.append(
            "The vocabulary size will be the tokenizer's; this count assumes the paper's "
            f"{PAPER_VOCABULARY:,} ids (set model.vocab_size for another number)."
        )
    data, phases = config.data, phase_steps(config)
    check_positions(max(data.lengths), config.model.max_positions)
    if phases is None:
        notes.append(
            f"{config.train.budget} of training may be any number of steps: for the training "
            "FLOPs give a --budget in steps, tokens or FLOPs."
        )
    steps = None if phases is None else sum(steps for _, steps in phases)
    rows: dict[int, int] | None = None
    if phases is not None:
        rows = dict.fromkeys(data.lengths, 0)
        for phase, count in phases:
            rows[phase.seq_length] += count * phase.batch_size
    paper = _costs(paper_row_flops, config, rows)
    return {
        "parameters": parameter_counts(_networks(config)),
        "vocab_size": config.model.vocab_size,
        "length": data.phases[-1].seq_length,
        "batch": data.phases[-1].batch_size,
        "phases": [phase._asdict() for phase in data.phases],
        "budget": config.train.budget,
        "steps": steps,
        "tokens": None if rows is None else sum(n * length for length, n in rows.items()),
        "paper": paper | _multiples(paper["train"]),
        "hardware": _costs(row_flops, config, rows),
        "notes": notes,
    }


def _costs(
    rule: Callable[[Sequence[Workload], int], int],
    config: PretrainConfig,
    rows: Mapping[int, int] | None,
) -> dict[str, float | None]:
    """Return the FLOPs of training and inference by one of the rules.

    `rows` are those of each length; a single row is one of the last phase.
    """
    length = config.data.phases[-1].seq_length
    works = row_workloads(config, length)
    kept = works[-1].sizes
    train = None
    if rows is not None:
        train = sum(n * rule(row_workloads(config, each), each) for each, n in rows.items())
    return {
        "train": train,
        "per_token": rule(works, length) / length,
        "inference": rule([Workload(sizes=kept, rtd_positions=length, trained=False)], length),
        "inference_128": rule([Workload(sizes=kept, rtd_positions=128, trained=False)], 128),
    }


def _multiples(train: float | None) -> dict[str, float | None]:
    """Return training FLOPs as multiples of two of the paper's models."""
    models = {"times_electra_small": ELECTRA_SMALL, "times_bert_base": BERT_BASE}
    return {name: train and train / model.train_flops() for name, model in models.items()}


def _networks(config: PretrainConfig) -> nn.Module:
    """Return the networks of a recipe on the meta device, which has shapes but no memory."""
    model = replace(config.model, init="paper")  # local initialisation needs values
    with torch.device("meta"):
        if config.objective.kind == "mlm":  # the objective itself needs the values of a mask
            return nn.ModuleDict({"mlm": Generator(Encoder(model))})
        vocab = VocabInfo(mask_id=0, special_ids=())
        return build(config.objective, model, config.generator, vocab)
