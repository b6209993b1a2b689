"""What the loop asks of an objective: exercises, a loss, sums for the figures, and what to keep."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.models.electra import Discriminator, Generator
from electra.models.frequency_generator import FrequencyGenerator
from electra.objectives.batch import Batch, unpack
from electra.objectives.corrupt import Masked, Rate, mask_tokens, put, sample_tokens
from electra.objectives.settings import ObjectiveConfig

MetricSums = Mapping[str, float]


class VocabInfo(NamedTuple):
    """What an objective knows of the vocabulary."""

    mask: int
    special: Sequence[int]
    absent: Sequence[int] = ()


class LossOutput(NamedTuple):
    """The result of one forward pass; an objective without verdicts leaves them out."""

    loss: Tensor
    sums: Tensor  # (len(names),) in fp32
    corrupted: Tensor | None = None  # (batch, length) what the kept network read
    replaced: Tensor | None = None  # (batch, length) the labels
    scores: Tensor | None = None  # (batch, length) the logits
    loss_mask: Tensor | None = None  # (batch, length) where they count


class MlmOutput(NamedTuple):
    """What a masked language model says at the drawn positions."""

    loss: Tensor  # the cross-entropy of the true tokens, summed
    right: Tensor  # (batch, slots) its best guess is the true token
    samples: Tensor  # (batch, slots) a token for each slot: drawn, or the true one if none is asked


class Objective(nn.Module):
    """Networks and their loss; `forward(batch, masked, totals)` returns a `LossOutput`."""

    metric_names: ClassVar[tuple[str, ...]] = ()
    """What a step adds up. Ratios are taken of the sums over many batches, never averaged."""
    auc: ClassVar[str] = "auc"
    """The figure that tells how well scores rank replaced tokens above the others."""
    stage_fraction: ClassVar[float] = 1.0
    """How much of a run a stage is."""

    def __init__(self, config: ObjectiveConfig, rows: int, ids: VocabInfo) -> None:
        super().__init__()
        self.config = config
        self.mask_id = ids.mask
        self.rate: Rate = config.mask_rate
        self.start: int | None = None
        """What a document begins with, where documents in a row shall not see each other."""
        maskable = torch.ones(rows, dtype=torch.bool)
        maskable[list(ids.special)] = False
        self.maskable: Tensor
        self.register_buffer("maskable", maskable, persistent=False)

    def update_progress(self, progress: float) -> bool:
        """Be told where the run is before each step; True if a stage with another loss begins."""
        self.rate = self.config.rate_at(progress)
        return False

    def each_stage(self) -> Iterator[None]:
        """Be in each stage in turn: a rehearsal has to see them all."""
        yield

    @property
    def in_second_stage(self) -> bool:
        """Whether the second of two stages has begun; most objectives have but one."""
        return False

    def stage_progress(self, progress: float) -> float:
        """Progress within the present stage, which schedule and watch go by."""
        return progress

    def mask_batch(self, rows: Tensor) -> tuple[Batch, Masked, Tensor]:
        """What a step begins with: a batch, what is drawn in it, and the denominators."""
        batch = self.unpack(rows)
        masked = self.mask(batch)
        return batch, masked, self.totals(batch, masked)

    def unpack(self, rows: Tensor) -> Batch:
        """A batch from stored rows."""
        return unpack(rows, self.start)

    def mask(self, batch: Batch) -> Masked:
        """The generator's exercise for a whole batch, before it is cut into micro-batches."""
        c = self.config
        return mask_tokens(
            batch.ids,
            batch.attention_mask,
            self.maskable,
            self.mask_id,
            rate=self.rate if self.training else c.mask_rate,
            top_rate=c.top_rate,
            shown=c.mask_token_prob,
            rounding=c.mask_count_rounding,
            draw=c.mask_sampling,
        )

    def totals(self, batch: Batch, masked: Masked) -> Tensor:
        """The denominators of the losses over a whole batch: its masked and its real tokens."""
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
        """What `network` makes of the drawn positions of its inputs."""
        logits = network(inputs, batch.segments, batch.doc_ids, masked.positions).float()
        return self.read(logits, masked, sample=sample)

    def read(self, logits: Tensor, masked: Masked, *, sample: bool) -> MlmOutput:
        """Loss, best guess and sample from the same logits, dropout included."""
        loss = loss_at(logits, masked)
        samples = masked.labels
        with torch.no_grad():
            if sample:
                excluded = masked.labels if self.config.disallow_correct else None
                samples = sample_tokens(logits, self.config.temperature, excluded)
            right = (logits.argmax(-1) == masked.labels) & masked.is_masked
        return MlmOutput(loss, right, samples)

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        """The figures people look at, from sums over any number of batches."""
        raise NotImplementedError

    def unigram_loss(self, entropy: float) -> float:
        """Loss of a network that guesses words by their frequency; infinite where none learns."""
        return (
            self.config.mask_token_prob * entropy
        )  # what is not hidden behind [MASK] costs nothing

    def networks(self) -> dict[str, Generator | Discriminator]:
        """What a checkpoint exports, under the names of the folders."""
        raise NotImplementedError


class CorruptingObjective(Objective):
    """An objective whose generator fills the drawn positions."""

    generator: Generator | FrequencyGenerator

    def run_generator(self, batch: Batch, masked: Masked) -> MlmOutput:
        """The generator's guesses."""
        return self.run_mlm(self.generator, masked.inputs, batch, masked, sample=True)

    def corrupt(self, batch: Batch, masked: Masked, samples: Tensor) -> tuple[Tensor, Tensor]:
        """The original text with the samples in it, and which tokens are replaced."""
        corrupted = put(batch.ids, masked.positions, samples, masked.is_masked)
        replaced = corrupted != batch.ids  # a correct guess counts as original
        return corrupted, replaced  # (batch, length) each

    def unigram_loss(self, entropy: float) -> float:
        learns = isinstance(self.generator, Generator)
        return super().unigram_loss(entropy) if learns else float("inf")

    def exported_generator(self) -> dict[str, Generator | Discriminator]:
        """The generator's folder, if it has weights."""
        return {"generator": self.generator} if isinstance(self.generator, Generator) else {}


GENERATOR_METRIC_SUMS = (
    "masked",  # positions that were drawn
    "mlm_loss",
    "guessed",  # the generator's best guess is the true token
    "sampled_true",  # its sample is the true token
)


def generator_sums(guesses: MlmOutput, masked: Masked) -> tuple[Tensor, ...]:
    """In the order of `GENERATOR_METRIC_SUMS`."""
    true = (guesses.samples == masked.labels) & masked.is_masked
    return masked.is_masked, guesses.loss, guesses.right, true


def generator_metrics(sums: MetricSums) -> dict[str, float]:
    """The generator's part of the figures."""
    masked = max(sums["masked"], 1)
    return {
        "mlm_loss": sums["mlm_loss"] / masked,
        "generator_accuracy": sums["guessed"] / masked,
        "generator_sampled_accuracy": sums["sampled_true"] / masked,
    }


def loss_at(logits: Tensor, masked: Masked) -> Tensor:
    """Cross-entropy of the true tokens at the drawn positions, summed."""
    nll = F.cross_entropy(logits.flatten(0, 1), masked.labels.flatten(), reduction="none")
    # Not a product: a slot that is not used may hold a token that has no probability at all.
    return torch.where(masked.is_masked.flatten(), nll, 0.0).sum()


def sum_each(*counted: Tensor) -> Tensor:
    """Each of them summed, in fp32; those of one shape together, in few launches."""
    alike: dict[torch.Size, list[Tensor]] = {}
    for x in counted:
        alike.setdefault(x.shape, []).append(x.detach())
    for shape, same in alike.items():
        sums = torch.stack(same).view(len(same), -1).sum(1, dtype=torch.float32)
        alike[shape] = list(sums.unbind())
    return torch.stack([alike[x.shape].pop(0) for x in counted])


def scatter_mask(masked: Masked, length: int) -> Tensor:
    """The drawn positions as a map of the rows."""
    flags = torch.zeros(len(masked.positions), length, device=masked.positions.device)
    flags = flags.scatter_reduce(1, masked.positions, masked.is_masked.float(), "amax")
    return flags > 0  # (batch, length)
