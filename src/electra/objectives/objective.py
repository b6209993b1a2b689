"""The interface between the training loop and an objective, and helpers that objectives share."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from electra.models.electra import Discriminator, Generator
from electra.models.frequency_generator import FrequencyGenerator
from electra.objectives.batch import Batch, unpack
from electra.objectives.corrupt import Masked, Rate, mask_tokens, scatter_tokens
from electra.objectives.mlm_output import MlmOutput, mlm_output
from electra.objectives.random import row_keys
from electra.objectives.settings import ObjectiveConfig

MetricSums = Mapping[str, float]


class VocabInfo(NamedTuple):
    """The token ids of a vocabulary that objectives treat specially."""

    mask_id: int
    special_ids: Sequence[int]
    """Never masked: [CLS], [SEP], [PAD], [MASK] and other special tokens."""
    absent_ids: Sequence[int] = ()
    """Ids without a token, which are never predicted."""


class LossOutput(NamedTuple):
    """The result of one forward pass; objectives that do not detect leave the tensors out."""

    loss: Tensor
    metric_sums: Tensor  # (len(metric_names),) in fp32
    corrupted: Tensor | None = None  # (batch, length) the input of the network that is kept
    replaced: Tensor | None = None  # (batch, length) the labels
    logits: Tensor | None = None  # (batch, length) of 'replaced'
    loss_mask: Tensor | None = None  # (batch, length) positions that count in the loss


class Objective(nn.Module):
    """Networks and their loss; `forward(batch, masked, totals)` returns a `LossOutput`."""

    metric_names: ClassVar[tuple[str, ...]] = ()
    """Names of the sums that each step returns; `compute_metrics` turns totals into metrics."""
    auc: ClassVar[str] = "auc"
    """Name of the metric for how well the logits rank replaced tokens above original ones."""

    generator_modules: ClassVar[tuple[str, ...]] = ("generator",)
    """Children whose own parameters `optim.generator_lr` and similar settings apply to."""

    def __init__(self, config: ObjectiveConfig, table_rows: int, vocab: VocabInfo) -> None:
        super().__init__()
        self.config = config
        self.mask_id = vocab.mask_id
        self.mask_rate: Rate = config.mask_rate
        self.document_start_id: int | None = None
        """The token that begins each document, if documents must not attend to each other."""
        maskable = torch.ones(table_rows, dtype=torch.bool)
        maskable[list(vocab.special_ids)] = False
        self.maskable: Tensor
        self.register_buffer("maskable", maskable, persistent=False)
        self.counter: Tensor  # seed, step and first row, on the device: a CUDA graph reads it
        self.register_buffer("counter", torch.zeros(3, dtype=torch.long), persistent=False)

    def set_seed(self, seed: int) -> None:
        """Set the seed of masks and samples."""
        self.counter[0].fill_(seed)

    def set_step(self, step: int, first_row: int = 0) -> None:
        """Set the step that masks and samples depend on, and the index of the first row.

        With several ranks, `first_row` is the index of this rank's first row in the whole batch.
        """
        self.counter[1].fill_(step)
        self.counter[2].fill_(first_row)

    # What changes in the course of a run; two_stage.py changes the loss as well.

    def update_progress(self, progress: float) -> bool:
        """Prepare the step that starts at `progress`; return True when the loss is another one."""
        self.mask_rate = self.config.rate_at(progress)
        return False

    @property
    def schedule_span(self) -> tuple[float, float]:
        """The part of the run that the current learning rate schedule covers."""
        return 0.0, 1.0

    @property
    def step_kind(self) -> int:
        """Steps of one kind run the same operations, so that they share a CUDA graph."""
        return 0

    def each_step_kind(self) -> Iterator[None]:
        """Prepare each kind of step in turn, to compile or capture it; then restore the present."""
        yield

    # The parts of a step. `train/accelerate.py` replaces some of them by fused kernels.

    def mask_batch(self, rows: Tensor) -> tuple[Batch, Masked, Tensor]:
        """Turn stored rows into a batch, its masked positions and the denominators of its loss."""
        batch = self.unpack(rows)
        masked = self.mask(batch)
        return batch, masked, self.totals(batch, masked)

    def unpack(self, rows: Tensor) -> Batch:
        """Turn stored rows into a batch."""
        keys = row_keys(self.counter.to(rows.device), len(rows))
        return unpack(rows, self.document_start_id, keys)

    def mask(self, batch: Batch) -> Masked:
        """Choose the positions to mask, for a whole batch before it is split into micro-batches."""
        c = self.config
        return mask_tokens(
            batch.ids,
            batch.attention_mask,
            self.maskable,
            self.mask_id,
            batch.row_keys,
            rate=self.mask_rate if self.training else c.mask_rate,
            top_rate=c.top_rate,
            mask_token_prob=c.mask_token_prob,
            rounding=c.mask_count_rounding,
            sampling=c.mask_sampling,
        )

    def totals(self, batch: Batch, masked: Masked) -> Tensor:
        """Return the denominators of the losses over a whole batch: masked tokens, all tokens."""
        return torch.stack([masked.is_masked.sum(), batch.attention_mask.sum()]).clamp_min(1)

    def run_mlm(
        self,
        network: Generator | FrequencyGenerator,
        inputs: Tensor,
        batch: Batch,
        masked: Masked,
        *,
        sample: bool,
    ) -> MlmOutput:
        """Predict the masked positions; the fused kernels do it without storing the logits."""
        return mlm_output(network, inputs, batch, masked, self.config, sample=sample)

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        """Compute metrics from sums over any number of batches."""
        raise NotImplementedError

    def hidden_share(self) -> float | None:
        """Return the share of masked tokens that the predicting network cannot see.

        None if no network learns to predict tokens.
        """
        return self.config.mask_token_prob

    def networks(self) -> dict[str, Generator | Discriminator]:
        """Return the networks that a checkpoint exports, by folder name."""
        raise NotImplementedError


class CorruptingObjective(Objective):
    """An objective with a generator whose samples replace the masked tokens."""

    generator: Generator | FrequencyGenerator

    def corrupt(self, batch: Batch, masked: Masked, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Put the samples into the original text; return it and which tokens are replaced."""
        corrupted = scatter_tokens(batch.ids, masked.positions, samples, masked.is_masked)
        replaced = corrupted != batch.ids  # a correct sample counts as original
        return corrupted, replaced  # (batch, length) each

    def hidden_share(self) -> float | None:
        return super().hidden_share() if isinstance(self.generator, Generator) else None

    def exported_generator(self) -> dict[str, Generator | Discriminator]:
        """Return the generator for export, if it has weights."""
        return {"generator": self.generator} if isinstance(self.generator, Generator) else {}


GENERATOR_METRIC_SUMS = (
    "masked",  # masked positions
    "mlm_loss",
    "generator_correct",  # the generator's most likely token is the original one
    "sampled_correct",  # the generator's sample is the original token
)


def generator_sums(mlm: MlmOutput, masked: Masked) -> tuple[Tensor, ...]:
    """Return what `GENERATOR_METRIC_SUMS` names, not summed yet."""
    sampled_correct = (mlm.samples == masked.labels) & masked.is_masked
    return masked.is_masked, mlm.loss, mlm.correct, sampled_correct


def generator_metrics(sums: MetricSums) -> dict[str, float]:
    """Compute the generator's metrics."""
    masked = max(sums["masked"], 1)
    return {
        "mlm_loss": sums["mlm_loss"] / masked,
        "generator_accuracy": sums["generator_correct"] / masked,
        "generator_sampled_accuracy": sums["sampled_correct"] / masked,
    }


def sum_each(*tensors: Tensor) -> Tensor:
    """Sum each tensor in fp32; tensors of one shape are summed together, in few launches."""
    by_shape: dict[torch.Size, list[Tensor]] = {}
    for x in tensors:
        by_shape.setdefault(x.shape, []).append(x.detach())
    for shape, same in by_shape.items():
        sums = torch.stack(same).view(len(same), -1).sum(1, dtype=torch.float32)
        by_shape[shape] = list(sums.unbind())
    return torch.stack([by_shape[x.shape].pop(0) for x in tensors])


def scatter_mask(masked: Masked, length: int) -> Tensor:
    """Return which positions are masked, (batch, length)."""
    flags = torch.zeros(len(masked.positions), length, device=masked.positions.device)
    flags = flags.scatter_reduce(1, masked.positions, masked.is_masked.float(), "amax")
    return flags > 0
