"""The configuration of a pre-training run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

from electra.errors import UserError
from electra.models.electra import GeneratorConfig
from electra.models.encoder import EncoderConfig
from electra.objectives.kinds import check_together
from electra.objectives.settings import ObjectiveConfig
from electra.optim.adam import OptimConfig
from electra.train.budget import parse_budget
from electra.train.data import DataConfig
from electra.train.init_from import InitFromConfig
from electra.train.loop import LoopConfig
from electra.train.scoring import ScoreOnConfig

MAY_CHANGE_ON_RESUME = frozenset(
    {
        "data.folder",  # its content is compared by digest
        "data.verify",
        "data.cache_dir",
        "data.cache_gb",
        "train.grad_accumulation",
        "train.device",
        "train.threads",
        "train.data_parallel",
        "train.compile",
        "train.cuda_graph",
        "train.fused_kernels",
        "train.activation_checkpointing",
        "train.report_every",
        "train.validate_every",
        "train.checkpoint_every",
        "train.keep_last",
        "train.keep_best",
        "train.logger",
        *(f"score_on.{f.name}" for f in fields(ScoreOnConfig)),
    }
)
"""Settings that decide how a run is computed, logged and saved, but not what it learns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """All settings of a pre-training run."""

    name: str = ""
    """Name of the recipe."""
    model: EncoderConfig = field(default_factory=EncoderConfig)
    """The discriminator, which becomes your text encoder."""
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    """The generator, which proposes replacements and is discarded after training."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """The training objective: replaced token detection or one of its variants."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimizer and learning rate schedule."""
    data: DataConfig = field(default_factory=DataConfig)
    """The training data."""
    train: LoopConfig = field(default_factory=LoopConfig)
    """The training loop."""
    init_from: InitFromConfig = field(default_factory=InitFromConfig)
    """The trained model that the run starts from, if any."""
    score_on: ScoreOnConfig = field(default_factory=ScoreOnConfig)
    """Your own task, on which checkpoints are scored while the run trains."""

    RENAMED_KEYS: ClassVar[Mapping[str, str]] = {
        "model.positions": "model.max_positions",
        "model.start": "model.init",
        "generator.share": "generator.tie",
        "objective.mask_shown": "objective.mask_token_prob",
        "objective.mask_random": "objective.random_token_prob",
        "objective.count": "objective.mask_count_rounding",
        "objective.draw": "objective.mask_sampling",
        "objective.exclude_true": "objective.disallow_correct",
        "objective.copy_start": "objective.init_from_generator",
        "data.length": "data.seq_length",
        "data.batch": "data.batch_size",
        "data.documents": "data.document_mask",
        "train.accumulate": "train.grad_accumulation",
        "train.graph": "train.cuda_graph",
        "train.kernels": "train.fused_kernels",
        "train.recompute": "train.activation_checkpointing",
        "train.track": "train.logger",
    }
    RENAMED_VALUES: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "model.init": {"neighbours": "local"},
        "train.fused_kernels": {"true": "auto", "false": "off"},
    }

    # Names that other libraries use: not accepted, but the error names ours.
    ALIASES: ClassVar[Mapping[str, str]] = {
        "learning_rate": "optim.lr",
        "max_lr": "optim.lr",
        "warmup_steps": "optim.warmup",
        "num_warmup_steps": "optim.warmup",
        "warmup_ratio": "optim.warmup",
        "adam_epsilon": "optim.eps",
        "max_grad_norm": "optim.clip",
        "grad_clip": "optim.clip",
        "batch": "data.batch_size",
        "train_batch_size": "data.batch_size",
        "per_device_train_batch_size": "data.batch_size",
        "max_length": "data.seq_length",
        "max_seq_length": "data.seq_length",
        "sequence_length": "data.seq_length",
        "steps": "train.budget",
        "max_steps": "train.budget",
        "num_train_steps": "train.budget",
        "epochs": "train.budget",
        "num_train_epochs": "train.budget",
        "accumulate_grad_batches": "train.grad_accumulation",
        "gradient_accumulation_steps": "train.grad_accumulation",
        "gradient_checkpointing": "train.activation_checkpointing",
        "num_threads": "train.threads",
        "parallel": "train.data_parallel",
        "strategy": "train.data_parallel",
        "fsdp": "train.data_parallel",
        "torch_compile": "train.compile",
        "bf16": "train.precision",
        "fp16": "train.precision",
        "mixed_precision": "train.precision",
        "logging_steps": "train.report_every",
        "eval_steps": "train.validate_every",
        "save_steps": "train.checkpoint_every",
        "save_total_limit": "train.keep_last",
        "report_to": "train.logger",
        "num_hidden_layers": "model.layers",
        "num_layers": "model.layers",
        "n_layer": "model.layers",
        "hidden_size": "model.hidden",
        "d_model": "model.hidden",
        "embedding_size": "model.embedding",
        "num_attention_heads": "model.heads",
        "n_head": "model.heads",
        "intermediate_size": "model.feed_forward",
        "hidden_dropout_prob": "model.dropout",
        "attention_probs_dropout_prob": "model.attention_dropout",
        "max_position_embeddings": "model.max_positions",
        "initializer_range": "model.init_std",
        "generator_hidden_size": "generator.width",
        "generator_layers": "generator.depth",
        "mask_prob": "objective.mask_rate",
        "mlm_probability": "objective.mask_rate",
        "disc_weight": "objective.discriminator_weight",
        "gen_weight": "objective.generator_weight",
    }

    def __post_init__(self) -> None:
        parse_budget(self.train.budget)
        check_together(self.objective, self.model, self.generator)
        if self.data.document_mask and self.objective.kind == "electric":
            raise UserError(
                "objective.kind=electric reads each row as one text: leave out data.document_mask."
            )
        if self.optim.kind == "muon" and self.train.data_parallel == "fsdp":
            raise UserError(
                "optim.kind=muon needs whole matrices, and train.data_parallel=fsdp shards them: "
                "use train.data_parallel=ddp."
            )
        batches = [phase.batch_size for phase in self.data.phases]
        whole = math.gcd(*batches)
        if whole % self.train.grad_accumulation:
            batch = next(n for n in batches if n % self.train.grad_accumulation)
            divisors = [n for n in range(1, whole + 1) if whole % n == 0]
            near = sorted(divisors, key=lambda n: abs(n - self.train.grad_accumulation))[:3]
            raise UserError(
                f"A batch of {batch} rows does not divide into "
                f"{self.train.grad_accumulation} micro-batches: set train.grad_accumulation to "
                f"{', '.join(map(str, sorted(near)))} or change data.batch_size."
            )
