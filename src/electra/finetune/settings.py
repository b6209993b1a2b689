"""The settings of fine-tuning."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from electra.device import Device, Precision
from electra.errors import UserError
from electra.models.heads import HeadKind, Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneConfig:
    """How a task is learned."""

    lr: float = 0.0
    """Peak learning rate; 0 takes the paper's for the model size: 3e-4 small, 1e-4 base, 5e-5
    large."""
    layer_decay: float = 0.0
    """Layer-wise learning rate decay: each layer has the rate of the layer above times this; 0
    takes the paper's for the model size: 0.9 for large, else 0.8."""
    layer_gap: Literal["even", "released"] = "even"
    """'even' gives the last layer the rate of the head times layer_decay; 'released' times
    layer_decay squared, like the code of google-research/electra."""
    epochs: float = 0.0
    """Passes over the training examples; may be a fraction. 0 takes the task's default: 10 for RTE
    and STS-B, 2 for questions, else 3; for your own files, more if that is fewer than 120 steps."""
    batch_size: int = 32
    """Examples per step."""
    warmup: float = 0.1
    """Fraction of the steps over which the learning rate rises from 0."""
    weight_decay: float = 0.0
    """Decoupled weight decay; biases and LayerNorm are exempt."""
    bias_correction: bool = False
    """Adam's bias correction, which google-research/electra leaves out. Without it, the first few
    hundred steps are up to three times as large; layer_decay makes up for that. Turn it on if you
    set layer_decay=1."""
    clip: float = 1.0
    """Maximum gradient norm. The loss is summed over the batch, as in google-research/electra, so
    nearly every step is clipped."""
    dropout: float = 0.1
    """Dropout of the head; the encoder keeps its own. The paper's heads for tags and questions have
    none, whatever this says; head=transformers uses it for tags."""
    head: HeadKind = "paper"
    """'paper' is the head of google-research/electra; 'transformers' is the head of the
    transformers classes, so that they load the model."""
    pool: Pool = "first"
    """What the paper's head reads for labels, numbers and choices: the 'first' token, or the 'max'
    over all tokens."""
    max_length: int = 0
    """Maximum sequence length in tokens; 0 takes the task's default: 512 for questions, 256 for
    tags, else 128."""
    doc_stride: int = 128
    """Questions: distance in tokens between two windows of a long context."""
    max_question_length: int = 64
    """Questions: longer questions are truncated to this many tokens."""
    max_answer_length: int = 30
    """Questions: maximum length of an answer in tokens."""
    beam_size: int = 20
    """Questions: number of starts, and of ends for each, that are searched; also the maximum number
    of answers in n_best."""
    answerability_weight: float = 0.5
    """Questions: weight of the loss for whether there is an answer."""
    parallel_seeds: int = 0
    """Seeds trained at the same time; 0 means all on a GPU and one on a CPU. It does not change the
    results."""
    device: Device = "auto"
    """The device to train on."""
    precision: Precision = "auto"
    """Precision of the matmuls; auto is bf16 on CUDA and fp32 elsewhere. bf16 is also faster on
    CPUs that compute it natively (AVX-512 BF16, AMX)."""

    RENAMED_KEYS: ClassVar[Mapping[str, str]] = {
        "batch": "batch_size",
        "length": "max_length",
        "stride": "doc_stride",
        "longest_question": "max_question_length",
        "longest_answer": "max_answer_length",
        "beam": "beam_size",
        "null_weight": "answerability_weight",
        "at_once": "parallel_seeds",
    }

    def __post_init__(self) -> None:
        at_least_one = ("batch_size", "doc_stride", "max_question_length", "max_answer_length")
        for name in (*at_least_one, "beam_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1.")
        not_negative = ("lr", "epochs", "weight_decay", "answerability_weight", "parallel_seeds")
        for name in not_negative:
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} must be a finite number of at least 0.")
        if not (0 <= self.warmup < 1 and 0 <= self.dropout < 1 and 0 <= self.layer_decay <= 1):
            raise UserError("warmup, dropout and layer_decay must be between 0 and 1.")
        if self.max_length < 8 and self.max_length != 0:
            raise UserError("max_length must be at least 8, or 0 for the task's default.")
        if not 0 < self.clip < math.inf:
            raise UserError("clip must be a finite number above 0.")
        if self.pool == "max" and self.head == "transformers":
            raise UserError("pool=max needs head=paper: transformers heads read the first token.")
