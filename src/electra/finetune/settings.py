"""The settings of fine-tuning; what is left at 0 follows the paper's table of sizes and tasks."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from electra.device import Device, Precision
from electra.errors import UserError
from electra.models.encoder import EncoderConfig
from electra.models.heads import HeadKind, Pool
from electra.tasks.examples import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneConfig:
    """How a task is learned."""

    lr: float = 0.0
    """Peak learning rate; 0 follows the model's size: 3e-4 small, 1e-4 base, 5e-5 large."""
    layer_decay: float = 0.0
    """Each layer learns slower than the one above by this factor; 0 follows the model's size: 0.9
    for large, else 0.8."""
    layer_gap: Literal["even", "released"] = "even"
    """'even' gives the last layer the head's rate times layer_decay; 'released' decays once more
    between head and last layer, as the original code does by mistake."""
    epochs: float = 0.0
    """Times through the training examples; 0 takes the task's: 10 for RTE and STS-B, 2 for
    questions, else 3."""
    batch: int = 32
    """Examples per step."""
    warmup: float = 0.1
    """Share of the steps over which the rate rises from 0."""
    weight_decay: float = 0.0
    """Decoupled decay of the matrices."""
    bias_correction: bool = False
    """Adam's correction for its first steps, which the original lacks. Without it a run of some
    hundred steps has rates that are effectively up to three times higher, which layer_decay makes
    up for; with one rate for all layers, set it."""
    clip: float = 1.0
    """Largest norm of the gradient. The loss is summed over a batch, as in the original, so that
    nearly every step is clipped."""
    dropout: float = 0.1
    """Dropout before the head; the encoder keeps its own."""
    head: HeadKind = "paper"
    """'paper' is one linear layer on the first token; 'transformers' is what that library's
    classes have, so that they load the result."""
    pool: Pool = "first"
    """What of a text the paper's head sees: the 'first' token, or the 'max' over all tokens."""
    length: int = 0
    """Longest row in tokens; 0 takes the task's: 512 for questions, 256 for tags, else 128."""
    stride: int = 128
    """Questions: tokens from the start of one window of a long context to the next."""
    longest_question: int = 64
    """Questions: tokens that are kept of a question."""
    longest_answer: int = 30
    """Questions: most tokens of an answer."""
    beam: int = 20
    """Questions: starts that are tried, and ends for each; also the answers that are listed."""
    null_weight: float = 0.5
    """Questions: weight of the loss that tells whether there is an answer."""
    at_once: int = 0
    """Seeds that are trained together; 0 means all on a GPU and one on a CPU. It does not change
    the results."""
    device: Device = "auto"
    """Where to train."""
    precision: Precision = "auto"
    """Products in bf16 (auto on CUDA) or fp32."""

    def __post_init__(self) -> None:
        if self.batch < 1 or self.at_once < 0 or self.beam < 1 or self.stride < 1:
            raise UserError("batch, beam and stride must be at least 1, at_once at least 0.")
        if min(self.lr, self.epochs, self.length, self.weight_decay, self.null_weight) < 0:
            raise UserError("lr, epochs, length, weight_decay and null_weight cannot be negative.")
        if not (0 <= self.warmup < 1 and 0 <= self.dropout < 1 and 0 <= self.layer_decay <= 1):
            raise UserError("warmup, dropout and layer_decay are shares between 0 and 1.")
        if min(self.longest_question, self.longest_answer) < 1 or 0 < self.length < 8:
            raise UserError(
                "longest_question and longest_answer must be at least 1, length at least 8."
            )
        if not all(map(math.isfinite, (self.lr, self.epochs, self.weight_decay, self.clip))):
            raise UserError("lr, epochs, weight_decay and clip must be finite numbers.")
        if self.clip <= 0:
            raise UserError("clip must be above 0.")
        if self.pool == "max" and self.head == "transformers":
            raise UserError("transformers' heads look at the first token: use head=paper.")


def resolve(config: FinetuneConfig, model: EncoderConfig, task: Task) -> FinetuneConfig:
    """The settings with every 0 filled in: the paper's table by size and task."""
    large, base = model.hidden >= 1024, 512 <= model.hidden < 1024
    length = min(config.length or task.max_length, model.max_positions)
    return replace(
        config,
        lr=config.lr or (5e-5 if large else 1e-4 if base else 3e-4),
        layer_decay=config.layer_decay or (0.9 if large else 0.8),
        epochs=config.epochs or task.epochs,
        length=length,
        # a window must move on by less than it is long
        stride=min(config.stride, max(1, length // 2)),
    )
