"""Replace methods of an objective and its networks by faster forms of the same computation."""

import importlib.util
import warnings
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from electra.models.dropout import attend, drop
from electra.models.electra import Discriminator, Generator
from electra.models.encoder import Attention, Encoder
from electra.models.frequency_generator import FrequencyGenerator
from electra.models.two_tower import TwoTowerGenerator
from electra.objectives.all_tokens_mlm import AllTokensMlm, TokenLogProbs
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked, max_masked
from electra.objectives.mlm_output import MlmOutput
from electra.objectives.objective import CorruptingObjective, LossOutput, Objective
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.two_stage import GeneratorFirst, TwoStage

MASKING = ("mask_batch", "unpack", "mask", "totals")
"""Methods that one masking kernel replaces together."""


def use_cheap_cpu_dropout_(objective: Objective) -> None:
    """Replace dropout by a form that takes less time on the CPU."""
    for module in objective.modules():
        if isinstance(module, nn.Dropout) and module.p:
            _replace(module, "forward", partial(_drop, module))
        elif isinstance(module, Attention) and module.dropout:
            _replace(module, "forward", partial(_attend, module))


def _drop(module: nn.Dropout, x: Tensor) -> Tensor:
    return drop(x, module.p, module.training)


def _attend(module: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    if not (module.training and module.dropout):
        return Attention.forward(module, q, k, v, mask)
    return attend(q, k, v, mask, lambda x: drop(x, module.dropout, training=True))


def use_fused_kernels_(
    objective: Objective,
    *,
    recompute: bool = False,
    setting: Literal["triton", "auto"] = "auto",
) -> None:
    """Run networks, losses and masking through the fused kernels from now on.

    A fused form replaces exactly the module or method that it stands for. Anything else keeps
    running as plain modules, and a warning says why.
    """
    if importlib.util.find_spec("triton") is None:  # CPU builds of torch come without it
        return
    from electra.kernels import modules

    reasons: dict[str, str] = {}
    options: dict[str, Any] = {"recompute": recompute, "setting": setting}
    for name, module in objective.named_modules():
        if isinstance(module, Encoder):
            if reason := modules.encoder_reason(module):
                reasons[name] = reason
            else:
                _replace(module, "forward", partial(modules.encoder_forward, module, **options))
        elif isinstance(module, Discriminator):
            if reason := modules.discriminator_head_mismatch(module):
                reasons[f"{name} head"] = reason
            else:
                _replace(module, "forward", partial(modules.discriminator_forward, module))
        elif isinstance(module, Generator):
            if reason := modules.generator_head_mismatch(module):
                reasons[f"{name} head"] = reason
            else:
                _replace(module, "has_fused_head", True)
    reasons |= _replace_methods(objective, setting)
    for name, reason in reasons.items():
        warnings.warn(
            f"fused kernels: {_readable(name)} runs as plain modules: {reason}", stacklevel=2
        )
    _replace(objective, "_plain_reasons", reasons)
    _replace(objective, "_kernel_setting", setting)


def _replace_methods(objective: Objective, setting: Literal["triton", "auto"]) -> dict[str, str]:
    """Replace an objective's methods by fused forms; return why some stay plain."""
    from electra.kernels import modules

    reasons = {}
    usual = objective.document_start_id is None and objective.config.mask_sampling == "distinct"
    forms: list[tuple[type[Objective], tuple[str, ...], Any]] = [
        (Objective, ("run_mlm",), partial(_run_mlm, objective, setting)),
        (CorruptingObjective, ("corrupt",), _corrupt),
        (ReplacedTokenDetection, ("detection_loss",), _detection_loss),
    ]
    if isinstance(objective, GeneratorFirst):
        forms.append((GeneratorFirst, ("forward",), partial(_generator_first_forward, objective)))
    elif isinstance(objective, ReplacedTokenDetection):
        forms.append((ReplacedTokenDetection, ("forward",), partial(_rtd_forward, objective)))
    if usual:
        forms.append((Objective, MASKING, partial(_mask_batch, objective)))
    if isinstance(objective, AllTokensMlm) and modules.uses_fused_head(objective.mlm):
        forms.append(
            (AllTokensMlm, ("token_log_probs",), partial(_token_log_probs, objective, setting))
        )
    for kind, names, form in forms:
        if not isinstance(objective, kind):
            continue
        own = _own_methods(objective, kind, names)
        if not own:
            _replace(objective, names[0], form)
        elif any(_is_foreign(objective, name) for name in own):
            reasons[names[0]] = f"{type(objective).__name__} overrides {own[0]}"
    return reasons


def _own_methods(objective: Objective, kind: type[Objective], names: tuple[str, ...]) -> list[str]:
    """Return the methods that a subclass of `kind` or the instance overrides."""
    return [
        name
        for name in names
        if getattr(type(objective), name) is not getattr(kind, name)
        or not _is_fused(vars(objective).get(name))
    ]


def _is_foreign(objective: Objective, name: str) -> bool:
    """Whether a method is defined outside of this package's objectives."""
    method = vars(objective).get(name, getattr(type(objective), name))
    return not method.__module__.startswith("electra.objectives.")


def _is_fused(value: Any) -> bool:
    """Whether an attribute of an objective is missing, or was put there by this module."""
    function = getattr(value, "func", value)
    return value is None or getattr(function, "__module__", "") == __name__


def describe_kernels(
    objective: Objective, rows: int, length: int, dtype: torch.dtype = torch.bfloat16
) -> str:
    """Describe the kernels that compute an objective's networks, in a few words.

    For example "generator fused encoder (CUDA), discriminator GEMM + attention (CUDA)".
    """
    plain: dict[str, str] | None = vars(objective).get("_plain_reasons")
    if plain is None:
        return "plain modules"
    from electra.kernels import modules
    from electra.kernels.plan import TIER_NAMES, plan_encoder, plan_mlm_loss

    setting = vars(objective)["_kernel_setting"]
    names = {module: name for name, module in objective.named_modules()}
    parts = []
    for name, network in objective.named_children():
        if isinstance(network, TwoTowerGenerator):
            parts.append(f"{name} plain modules (two towers)")
        if not isinstance(network, Generator | Discriminator):
            continue
        forward = vars(network.encoder).get("forward")
        if not isinstance(forward, partial):
            parts.append(f"{name} plain modules ({plain[names[network.encoder]]})")
            continue
        recompute = forward.keywords["recompute"]
        shape = modules.encoder_shape(network.encoder, rows, length, dtype, recompute=recompute)
        parts.append(f"{name} {plan_encoder(shape, setting).describe()}")
        if isinstance(network, Generator) and _has_fused_loss(objective, network):
            c, width = objective.config, network.encoder.config.embedding
            tier = plan_mlm_loss(
                width, c.temperature, c.disallow_correct, dtype, shape.device, setting
            )
            parts.append(f"MLM loss ({TIER_NAMES[tier]})")
    return ", ".join(parts) or "plain modules"


def _has_fused_loss(objective: Objective, network: Generator) -> bool:
    """Whether a fused kernel computes the MLM loss: a `forward` of one's own needs the logits."""
    from electra.kernels import modules

    detects = isinstance(objective, ReplacedTokenDetection) and not isinstance(objective, TwoStage)
    if "run_mlm" not in vars(objective) or (detects and "forward" not in vars(objective)):
        return False
    return modules.uses_fused_head(network)


def _readable(name: str) -> str:
    """Return `discriminator.encoder` as `discriminator encoder`."""
    return name.replace(".", " ") or "the objective"


def _mask_batch(objective: Objective, rows: Tensor) -> tuple[Batch, Masked, Tensor]:
    """The fused form of `Objective.mask_batch`, with the same random numbers."""
    from electra.kernels.any_gpu.masking import MAX_LENGTH, mask_rows

    c, length = objective.config, rows.shape[1] - 2
    rate = objective.mask_rate if objective.training else c.mask_rate
    elsewhere = rows.device != objective.maskable.device
    # The rate is a tensor if it changes between replays of a CUDA graph
    if elsewhere or isinstance(rate, Tensor) or length > MAX_LENGTH:
        return Objective.mask_batch(objective, rows)
    ids, segments, attention_mask, keys, *masked, counts = mask_rows(
        rows,
        objective.maskable,
        objective.counter,
        slots=max_masked(length, max(rate, c.top_rate), c.mask_count_rounding),
        mask_id=objective.mask_id,
        rate=rate,
        mask_token_prob=c.mask_token_prob,
        most=max_masked(length, rate, c.mask_count_rounding),
        ceil=c.mask_count_rounding == "ceil",
    )
    return (
        Batch(ids, segments, attention_mask, attention_mask, keys),
        Masked(*masked),
        counts.sum(1).clamp_min(1),
    )


def _run_mlm(
    objective: Objective,
    setting: Literal["triton", "auto"],
    network: Generator | FrequencyGenerator,
    inputs: Tensor,
    batch: Batch,
    masked: Masked,
    *,
    sample: bool,
) -> MlmOutput:
    """The fused form of `Objective.run_mlm`; it always samples, which costs nothing."""
    from electra.kernels import modules

    if not isinstance(network, Generator) or not modules.uses_fused_head(network):
        return type(objective).run_mlm(objective, network, inputs, batch, masked, sample=sample)
    c = objective.config
    hidden = network.states(inputs, batch.segments, batch.doc_ids, masked.positions)
    slots = (masked.labels, masked.is_masked, masked.labels, batch.row_keys)
    options = (c.temperature, c.disallow_correct, setting)
    losses, samples, best, _ = modules.mlm_loss(network, hidden, *slots, *options)
    correct = (best == masked.labels) & masked.is_masked
    return MlmOutput(losses.sum(), correct, samples)


def _rtd_forward(
    objective: ReplacedTokenDetection, batch: Batch, masked: Masked, totals: Tensor
) -> LossOutput:
    """The fused form of `ReplacedTokenDetection.forward`: without logits in memory."""
    mlm = objective.run_mlm(objective.generator, masked.inputs, batch, masked, sample=True)
    corrupted, replaced = objective.corrupt(batch, masked, mlm.samples)
    logits = objective.discriminator(corrupted, batch.segments, batch.doc_ids).float()
    loss_mask = objective.loss_mask(batch, masked)
    detection_loss, sums = objective.detection_loss(logits, replaced, loss_mask, batch, masked, mlm)
    weights = objective.weights / totals
    loss = weights[0] * mlm.loss + weights[1] * detection_loss
    return LossOutput(loss, sums, corrupted, replaced, logits.detach(), loss_mask)


def _generator_first_forward(
    objective: GeneratorFirst, batch: Batch, masked: Masked, totals: Tensor
) -> LossOutput:
    """The fused form of `GeneratorFirst.forward`."""
    if objective.in_second_stage:
        return _rtd_forward(objective, batch, masked, totals)
    return objective.train_generator(batch, masked, totals)


def _token_log_probs(
    objective: AllTokensMlm,
    setting: Literal["triton", "auto"],
    hidden: Tensor,
    batch: Batch,
    corrupted: Tensor,
) -> TokenLogProbs:
    """The fused form of `AllTokensMlm.token_log_probs`; padding has no loss and is not read."""
    from electra.kernels import modules

    losses, _, best_token, log_probs = modules.mlm_loss(
        objective.mlm,
        hidden,
        batch.ids,
        batch.attention_mask,
        corrupted,
        batch.row_keys,
        setting=setting,
    )
    best, input_log_prob = log_probs.unbind(-1)
    return TokenLogProbs(-losses, input_log_prob, best, best_token)


def _corrupt(batch: Batch, masked: Masked, samples: Tensor) -> tuple[Tensor, Tensor]:
    """The fused form of `CorruptingObjective.corrupt`."""
    from electra.kernels.any_gpu.masking import scatter_tokens

    return scatter_tokens(batch.ids, masked.positions, samples, masked.is_masked)


def _detection_loss(
    logits: Tensor,
    replaced: Tensor,
    loss_mask: Tensor,
    batch: Batch,
    masked: Masked,
    mlm: MlmOutput,
) -> tuple[Tensor, Tensor]:
    """The fused form of `ReplacedTokenDetection.detection_loss`."""
    from electra.kernels.any_gpu.rtd import RtdLoss

    slots = (mlm.correct, mlm.samples, masked.labels, masked.is_masked)
    return RtdLoss.apply(
        logits, replaced, loss_mask, batch.attention_mask, mlm.loss.detach(), *slots
    )


def _replace(owner: Any, name: str, value: Any) -> None:
    # object.__setattr__, because nn.Module would register a module inside `value`
    object.__setattr__(owner, name, value)
