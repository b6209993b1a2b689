"""Put faster code under an objective: the same networks and the same loss."""

import importlib.util
from functools import partial
from typing import Any

from torch import Tensor, nn

from electra.models.dropout import attend, drop
from electra.models.electra import Discriminator, Generator
from electra.models.encoder import Attention, Encoder
from electra.models.frequency_generator import FrequencyGenerator
from electra.objectives.all_tokens_mlm import AllTokensMlm, TokenLogProbs
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked, max_masked
from electra.objectives.mlm_output import MlmOutput
from electra.objectives.objective import CorruptingObjective, Objective
from electra.objectives.random import Purpose, row_keys, uniform
from electra.objectives.rtd import ReplacedTokenDetection

BEGIN = ("mask_batch", "unpack", "mask", "totals")
"""What a step begins with."""


def use_cheap_cpu_dropout_(objective: Objective) -> None:
    """Cheaper dropout, for the CPU."""
    for module in objective.modules():
        if isinstance(module, nn.Dropout) and module.p:
            _become(module, "forward", partial(_drop, module))
        elif isinstance(module, Attention) and module.dropout:
            _become(module, "forward", partial(_attend, module))


def _drop(module: nn.Dropout, x: Tensor) -> Tensor:
    return drop(x, module.p, module.training)


def _attend(module: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    if not module.training:
        return Attention.forward(module, q, k, v, mask)
    return attend(q, k, v, mask, lambda x: drop(x, module.dropout, training=True))


def use_fused_kernels_(objective: Objective, *, recompute: bool = False) -> None:
    """Encoders that fit, the losses and the exercise through the kernels from now on."""
    if importlib.util.find_spec("triton") is None:  # it comes with torch where torch knows CUDA
        return
    from electra.kernels import encode

    for module in objective.modules():
        if isinstance(module, Encoder) and encode.fits(module):
            _become(module, "forward", partial(encode.encode, module, recompute=recompute))
        elif isinstance(module, Discriminator):
            _become(module, "forward", partial(encode.judge, module))
    if _inherits(objective, Objective, "run_mlm"):
        _become(objective, "run_mlm", partial(_guess, objective))
    usual = objective.document_start_id is None and objective.config.mask_sampling == "distinct"
    if usual and _inherits(objective, Objective, *BEGIN):
        _become(objective, "mask_batch", partial(_mask_batch, objective))
    if isinstance(objective, AllTokensMlm):
        _become(objective, "token_log_probs", partial(_say, objective))
    if _inherits(objective, CorruptingObjective, "corrupt"):
        _become(objective, "corrupt", _corrupt)
    if _inherits(objective, ReplacedTokenDetection, "detection_loss"):
        _become(objective, "detection_loss", _detection_loss)


def _inherits(objective: Objective, kind: type[Objective], *names: str) -> bool:
    """Whether it has these methods of that kind; its own stay as they are."""
    same = (getattr(type(objective), name) is getattr(kind, name) for name in names)
    return isinstance(objective, kind) and all(same)


def _mask_batch(objective: Objective, rows: Tensor) -> tuple[Batch, Masked, Tensor]:
    """As `Objective.mask_batch`, with the same random numbers."""
    from electra.kernels.exercise import LONGEST, write_exercise

    c, length = objective.config, rows.shape[1] - 2
    rate = objective.mask_rate if objective.training else c.mask_rate
    away = rows.device != objective.maskable.device
    if away or isinstance(rate, Tensor) or length > LONGEST:  # a rate that a graph reads
        return Objective.mask_batch(objective, rows)
    slots = max_masked(length, max(rate, c.top_rate), c.mask_count_rounding)
    keys = row_keys(objective.counter, len(rows))
    ids, segments, attention_mask, *masked, counts = write_exercise(
        rows,
        objective.maskable,
        uniform(keys, Purpose.MASK_POSITION, length),
        uniform(keys, Purpose.MASK_TOKEN, slots),
        mask_id=objective.mask_id,
        rate=rate,
        shown=c.mask_token_prob,
        most=max_masked(length, rate, c.mask_count_rounding),
        ceil=c.mask_count_rounding == "ceil",
    )
    return (
        Batch(ids, segments, attention_mask, attention_mask, keys),
        Masked(*masked),
        counts.sum(1).clamp_min(1),
    )


def _guess(
    objective: Objective,
    network: Generator | FrequencyGenerator,
    inputs: Tensor,
    batch: Batch,
    masked: Masked,
    *,
    sample: bool,
) -> MlmOutput:
    """As `Objective.run_mlm`; the sample comes for nothing, asked for or not."""
    from electra.kernels import encode

    if not isinstance(network, Generator):
        return type(objective).run_mlm(objective, network, inputs, batch, masked, sample=sample)
    c = objective.config
    states = network.states(inputs, batch.segments, batch.doc_ids, masked.positions)
    guesses = encode.guess(
        network, states, masked.labels, masked.is_masked, c.temperature, c.disallow_correct
    )
    return MlmOutput(*guesses)


def _say(objective: AllTokensMlm, hidden: Tensor, batch: Batch, corrupted: Tensor) -> TokenLogProbs:
    """As `AllTokensMlm.token_log_probs`; padding has no loss, and its words are not looked at."""
    from electra.kernels import encode

    losses, _, word, logs = encode.words(
        objective.mlm, hidden, batch.ids, batch.attention_mask, corrupted
    )
    best, here = logs.unbind(-1)
    return TokenLogProbs(-losses, here, best, word)


def _corrupt(batch: Batch, masked: Masked, samples: Tensor) -> tuple[Tensor, Tensor]:
    """As `CorruptingObjective.corrupt`."""
    from electra.kernels.put import put

    return put(batch.ids, masked.positions, samples, masked.is_masked)


def _detection_loss(
    scores: Tensor,
    replaced: Tensor,
    loss_mask: Tensor,
    batch: Batch,
    masked: Masked,
    guesses: MlmOutput,
) -> tuple[Tensor, Tensor]:
    """As `ReplacedTokenDetection.detection_loss`."""
    from electra.kernels.detect import Detect

    slots = (guesses.correct, guesses.samples, masked.labels, masked.is_masked)
    return Detect.apply(
        scores, replaced, loss_mask, batch.attention_mask, guesses.loss.detach(), *slots
    )


def _become(thing: Any, name: str, function: Any) -> None:
    # object.__setattr__, because a module looks at everything that it is given
    object.__setattr__(thing, name, function)
