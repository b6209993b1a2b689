"""Replaced token detection under transformers' `Trainer` or accelerate: a module and a collator.

The networks, masks, samples and losses are those of `electra pretrain`; the loop is theirs. Nothing
here imports transformers: `Trainer` takes any module whose forward returns its loss first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from electra.config import override
from electra.errors import UserError
from electra.hub.folders import load_discriminator, load_generator
from electra.hub.import_model import ImportedNetwork, write_networks
from electra.model_paths import find_model, find_network
from electra.models.electra import (
    Discriminator,
    Generator,
    GeneratorConfig,
    absent_token_mask,
    build_pair,
)
from electra.models.encoder import EncoderConfig
from electra.objectives.batch import Batch
from electra.objectives.objective import LossOutput, VocabInfo
from electra.objectives.random import GOLDEN, mix, row_keys
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.rtd_masked import MaskedTokenDetection
from electra.objectives.settings import ObjectiveConfig
from electra.optim.adam import OptimConfig, PaperAdam
from electra.optim.optimizer import build_optimizer
from electra.optim.schedule import learning_rate
from electra.recipes import recipe
from electra.text.tokenizer import load_tokenizer, special_names, vocabulary
from electra.train.checkpoint import read_state, restore
from electra.train.run_config import read_run_config

Split = Literal["train", "eval"]
SPLITS: tuple[Split, Split] = ("train", "eval")
KINDS = {"rtd": ReplacedTokenDetection, "rtd-masked": MaskedTokenDetection}
REPLICA_ROWS = 1 << 32
"""Rows between two replicas of `nn.DataParallel`, whose batches may differ in size."""


class ElectraForReplacedTokenDetection(nn.Module):
    """Generator, discriminator and their loss, as a model for `transformers.Trainer`.

    Masks and samples are functions of the seed, the number of forward passes in training mode and
    the row. The buffer `counter` holds the first two, so a checkpoint of `Trainer` has them. In
    evaluation mode they are functions of the row's text: the same at every evaluation.
    """

    def __init__(
        self,
        tokenizer: Any,
        model: EncoderConfig | None = None,
        generator: GeneratorConfig | None = None,
        objective: ObjectiveConfig | None = None,
        *,
        seed: int = 0,
        networks: tuple[Generator, Discriminator] | None = None,
    ) -> None:
        """Build new networks of these sizes, or take `networks`, which share what they share.

        `tokenizer` is one of transformers, or the folder of a tokenizer. The vocabulary size of
        `model` may be left out.
        """
        super().__init__()
        self.tokenizer, self.special_names = _backend(tokenizer)
        vocab = vocabulary(self.tokenizer, self.special_names)
        config = objective or ObjectiveConfig()
        generator = generator or GeneratorConfig()
        changes = config.mask_rate_end or config.generator_first
        if config.kind not in KINDS or generator.kind != "transformer" or changes:
            raise UserError(
                "ElectraForReplacedTokenDetection trains objective.kind=rtd or rtd-masked with "
                "generator.kind=transformer, a constant mask rate and both networks from the "
                "start: use `electra pretrain` for other objectives."
            )
        if networks is None:
            model = model or EncoderConfig()
            if model.vocab_size not in (0, vocab.size):
                raise UserError(
                    f"vocab_size={model.vocab_size}, but the tokenizer has {vocab.size} ids: leave "
                    "vocab_size out."
                )
            model = replace(model, vocab_size=vocab.size)
            networks = build_pair(model, generator, vocab.absent)
        rows = networks[1].encoder.config.vocab_size
        if vocab.size > rows:
            raise UserError(
                f"The tokenizer has {vocab.size:,} tokens and the model {rows:,}: use the "
                "tokenizer that the model was trained with."
            )
        ids = VocabInfo(vocab.mask, vocab.special, vocab.absent)
        self.objective = KINDS[config.kind](config, *networks, ids)
        self.pad_id = vocab.pad
        self.counter: Tensor  # seed and forward passes in training mode
        self.register_buffer("counter", torch.tensor([seed, 0]))
        self.metric_sums: Tensor
        sums = torch.zeros(len(SPLITS), len(self.objective.metric_names))
        self.register_buffer("metric_sums", sums, persistent=False)
        # safetensors refuses tensors that share memory: shared weights are stored once.
        self.register_state_dict_post_hook(_drop_shared)
        self.register_load_state_dict_pre_hook(_restore_shared)

    @classmethod
    def from_recipe(
        cls, name: str, tokenizer: Any, *changes: str
    ) -> "ElectraForReplacedTokenDetection":
        """Build new networks of a recipe or YAML file; `changes` are as `model.layers=6`."""
        config = override(recipe(name), changes)
        torch.manual_seed(config.train.seed)
        return cls(
            tokenizer, config.model, config.generator, config.objective, seed=config.train.seed
        )

    @classmethod
    def from_pretrained(
        cls, model: str | PathLike[str], objective: ObjectiveConfig | None = None, *, seed: int = 0
    ) -> "ElectraForReplacedTokenDetection":
        """Continue with a run, or with a folder or Hub model that has both networks.

        A run keeps its objective, its seed and what its networks share. In a folder, embeddings or
        encoders that are equal are shared.
        """
        folder = find_model(str(model))
        if (folder / "state.json").is_file():
            if objective is not None:
                raise UserError(f"{model} is a run, which keeps its objective: leave it out.")
            return cls._from_run(folder)
        names = {name: find_network(folder, name) for name in ("discriminator", "generator")}
        if names["discriminator"] == names["generator"]:
            raise UserError(
                f"{model} has only one network: give a folder with `discriminator` and "
                "`generator`, such as `electra import` writes."
            )
        discriminator = load_discriminator(names["discriminator"])
        generator = load_generator(names["generator"])
        share_equal_weights(generator, discriminator)
        tokenizer = names["discriminator"]
        made = cls(tokenizer, objective=objective, seed=seed, networks=(generator, discriminator))
        vocab = vocabulary(made.tokenizer, made.special_names)
        config = generator.encoder.config
        absent = (*vocab.absent, *range(vocab.size, config.vocab_size))
        generator.absent = absent_token_mask(config, absent)
        return made.train()

    @classmethod
    def _from_run(cls, checkpoint: Path) -> "ElectraForReplacedTokenDetection":
        """Load the networks of a checkpoint and continue its count of steps."""
        config, state = read_run_config(checkpoint), read_state(checkpoint)
        sections = config.model, config.generator, config.objective
        folder = checkpoint / "discriminator"
        made = cls(folder, *sections, seed=config.train.seed)
        restore(checkpoint, made.objective)
        made.counter[1] = state.step
        return made

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        return_loss: bool = True,
    ) -> LossOutput:
        """Mask, sample, replace and detect.

        `return_loss` tells `Trainer` that evaluation needs no labels. Without an attention
        mask, padding tokens are masked out.
        """
        longest = self.objective.discriminator.encoder.config.max_positions
        if input_ids.shape[1] > longest:
            raise UserError(
                f"A row has {input_ids.shape[1]} tokens and the model takes {longest}: tokenize "
                f"with truncation=True, max_length={longest}."
            )
        if attention_mask is None:
            attention_mask = input_ids != self.pad_id
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        tokens = attention_mask.bool()
        batch = Batch(input_ids, token_type_ids, tokens, tokens, self.row_keys(input_ids, tokens))
        masked = self.objective.mask(batch)
        output: LossOutput = self.objective(batch, masked, self.objective.totals(batch, masked))
        self.metric_sums[SPLITS.index("train" if self.training else "eval")] += output.metric_sums
        return output

    @torch.no_grad()
    def row_keys(self, ids: Tensor, tokens: Tensor) -> Tensor:
        """Return the keys of the rows' random numbers, (batch,), and advance the counter."""
        if not self.training:
            place = torch.arange(1, ids.shape[1] + 1, device=ids.device) * GOLDEN
            text = (mix(mix(ids + GOLDEN) + place) * tokens).sum(1)
            return mix(text + mix(self.counter[0] + GOLDEN))
        first_row = torch.full_like(self.counter[:1], _first_row(ids))
        keys = row_keys(torch.cat([self.counter, first_row]), len(ids))
        self.counter[1] += 1
        return keys

    def metrics(self, split: Split = "train") -> dict[str, float]:
        """Return the metrics of the forward passes since the last call, on this process."""
        sums = self.metric_sums[SPLITS.index(split)]
        found = dict(zip(self.objective.metric_names, sums.tolist(), strict=True))
        sums.zero_()
        return self.objective.compute_metrics(found)

    def save_pretrained(self, save_directory: str | PathLike[str]) -> None:
        """Write `discriminator` and `generator`, for transformers, with the tokenizer."""
        networks = {
            name: ImportedNetwork(
                network=network, tokenizer=self.tokenizer, special_names=self.special_names
            )
            for name, network in self.objective.networks().items()
        }
        write_networks(networks, Path(save_directory))


class ScheduledPaperAdam(PaperAdam):
    """The paper's Adam with the learning rate in its parameter groups, where schedulers set it."""

    def step(self, closure: Any = None) -> Tensor:  # type: ignore[override]
        """Update at the learning rate of the schedule; a closure is not supported."""
        return super().step(self.param_groups[0]["lr"])


def paper_optimizers(
    model: ElectraForReplacedTokenDetection, steps: int, config: OptimConfig | None = None
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Return the paper's Adam and schedule, for the argument `optimizers` of `Trainer`.

    `steps` are the optimizer steps of the whole training.
    """
    config = config or OptimConfig()
    if steps < 1 or not config.lr:
        raise UserError("paper_optimizers needs at least one step and a learning rate above 0.")
    if config.kind != "adam":
        raise UserError(f"paper_optimizers builds the paper's Adam, not {config.kind}.")
    groups: Any = build_optimizer(model.objective, config, kernels=False)
    optimizer = ScheduledPaperAdam(
        groups.param_groups, clip=config.clip, clip_by=config.clip_by, kernels=False
    )
    for group in optimizer.param_groups:
        group["lr"] = config.lr

    def share(step: int) -> float:
        return learning_rate(step / steps, steps, config) / config.lr

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)


@dataclass
class DataCollatorForReplacedTokenDetection:
    """Pads tokenized texts to the longest of the batch; the module masks them.

    A feature is a mapping with `input_ids`, as a tokenizer returns it; `attention_mask` and
    `token_type_ids` may be missing, other keys are ignored.
    """

    tokenizer: Any
    """A tokenizer of transformers."""
    pad_to_multiple_of: int = 1
    """Pad to a multiple of this length, so that few shapes occur."""

    def __post_init__(self) -> None:
        self._size = max(self.tokenizer.get_vocab().values()) + 1

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        rows = [self.check_ids(feature) for feature in features]
        length = max(len(ids) for ids in rows)
        length = -(-length // self.pad_to_multiple_of) * self.pad_to_multiple_of
        shape = len(rows), length
        batch = {
            "input_ids": torch.full(shape, self.tokenizer.pad_token_id),
            "attention_mask": torch.zeros(shape, dtype=torch.long),
            "token_type_ids": torch.zeros(shape, dtype=torch.long),
        }
        for row, (feature, ids) in enumerate(zip(features, rows, strict=True)):
            given = {"attention_mask": torch.ones_like(ids), **feature}
            for name in batch.keys() & given.keys():
                batch[name][row, : len(ids)] = torch.as_tensor(given[name])
        return batch

    def check_ids(self, feature: Mapping[str, Any]) -> Tensor:
        """Return the token ids of a row, or say what is wrong with them."""
        if "input_ids" not in feature:
            raise UserError(
                f"A row has no input_ids, only {', '.join(feature) or 'nothing'}: tokenize the "
                "texts first, as in dataset.map(lambda row: tokenizer(row['text']))."
            )
        ids = torch.as_tensor(feature["input_ids"])
        if ids.ndim != 1 or not len(ids):
            raise UserError("input_ids must be the ids of one text, at least one: check the rows.")
        if int(ids.min()) < 0 or int(ids.max()) >= self._size:
            raise UserError(
                f"A row has ids from {int(ids.min())} to {int(ids.max())}, and the tokenizer has "
                f"those below {self._size:,}: tokenize with the tokenizer of the model."
            )
        return ids


def share_equal_weights(generator: Generator, discriminator: Discriminator) -> None:
    """Let the networks share the encoder or the embeddings if they have equal weights."""
    if _equal(generator.encoder, discriminator.encoder):
        generator.encoder = discriminator.encoder
    elif _equal(generator.encoder.embeddings, discriminator.encoder.embeddings):
        generator.encoder.embeddings = discriminator.encoder.embeddings


def _equal(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two modules have the same parameters."""
    first, second = dict(one.named_parameters()), dict(other.named_parameters())
    return first.keys() == second.keys() and all(
        p.shape == second[name].shape and torch.equal(p, second[name]) for name, p in first.items()
    )


def _backend(tokenizer: Any) -> tuple[Tokenizer, dict[str, str]]:
    """Return the tokenizer of the library `tokenizers`, and its special tokens by role."""
    if isinstance(tokenizer, str | PathLike):
        return load_tokenizer(Path(tokenizer)), special_names(Path(tokenizer))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise UserError(
            "The tokenizer must be a fast tokenizer of transformers, or the folder of one: load it "
            "with AutoTokenizer.from_pretrained."
        )
    plain = Tokenizer.from_str(backend.to_str())  # a copy, because calls set truncation and padding
    plain.no_truncation()
    plain.no_padding()
    roles = ("pad", "cls", "sep", "mask", "unk")
    names = {role: getattr(tokenizer, f"{role}_token", None) for role in roles}
    return plain, {role: str(name) for role, name in names.items() if name is not None}


def _first_row(ids: Tensor) -> int:
    """Return the index of the first row in the batch of all processes, or of all replicas."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() * len(ids)
    return (ids.device.index or 0) * REPLICA_ROWS


def _shared_names(module: nn.Module) -> dict[str, str]:
    """Return further names of shared parameters, each with the first name."""
    first: dict[int, str] = {}
    shared = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        if id(p) in first:
            shared[name] = first[id(p)]
        first.setdefault(id(p), name)
    return shared


def _drop_shared(
    module: nn.Module, state: dict[str, Any], prefix: str, _metadata: dict[str, Any]
) -> None:
    for name in _shared_names(module):
        state.pop(prefix + name, None)


def _restore_shared(module: nn.Module, state: dict[str, Any], prefix: str, *_others: Any) -> None:
    for name, stored in _shared_names(module).items():
        if prefix + stored in state:
            state.setdefault(prefix + name, state[prefix + stored])
