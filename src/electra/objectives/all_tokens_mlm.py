"""All-Tokens MLM: predict the token at every position, with a copy gate (section 3.4).

A combination of BERT and ELECTRA: the gate D detects replaced tokens, and the output distribution
is D x (the input token) + (1 - D) x softmax.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.models.electra import Generator
from electra.models.encoder import glorot_linear
from electra.models.frequency_generator import FrequencyGenerator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.objective import (
    GENERATOR_METRIC_SUMS,
    LossOutput,
    MetricSums,
    VocabInfo,
    generator_metrics,
    generator_sums,
    sum_each,
)
from electra.objectives.replace_mlm import ReplaceMlm
from electra.objectives.settings import ObjectiveConfig


class TokenLogProbs(NamedTuple):
    """Log probabilities of the softmax at each position, (batch, length)."""

    original: Tensor  # of the original token; the only one with a gradient
    input: Tensor  # of the input token
    best: Tensor  # of the most likely token
    best_token: Tensor  # the id of the most likely token


class AllTokensMlm(ReplaceMlm):
    """The mixture's loss trains the gate, and so does a loss of its own: is this token original?"""

    metric_names = (
        *GENERATOR_METRIC_SUMS,
        *("tokens", "replaced", "model_loss", "model_correct"),
        *("gate_loss", "predicted_replaced", "true_positives"),
    )
    auc = "gate_auc"

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: Generator | FrequencyGenerator,
        mlm: Generator,
        vocab: VocabInfo,
    ) -> None:
        super().__init__(config, generator, mlm, vocab)
        self.gate = glorot_linear(mlm.encoder.config.hidden, 1)

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        c, tokens = self.config, batch.attention_mask
        generated = self.run_mlm(self.generator, masked.inputs, batch, masked, sample=True)
        corrupted, replaced = self.corrupt(batch, masked, generated.samples)

        hidden = self.mlm.encoder(corrupted, batch.segments, batch.doc_ids)
        log_probs = self.token_log_probs(hidden, batch, corrupted)
        copy = self.gate(hidden).squeeze(-1).float()  # (batch, length) the logit of D
        nll = -mixture(copy, log_probs.original, replaced)
        gate = F.binary_cross_entropy_with_logits(-copy, replaced.float(), reduction="none")
        model_loss, gate_loss = (nll * tokens).sum(), (gate * tokens).sum()
        kept = (c.model_weight * model_loss + c.gate_weight * gate_loss) / totals[1]
        loss = c.generator_weight * generated.loss / totals[0] + kept
        with torch.no_grad():
            predicted = (copy < 0) & tokens
            correct = best_token(log_probs, copy, corrupted) == batch.ids
            sums = sum_each(
                *generator_sums(generated, masked),
                *(tokens, replaced, model_loss),
                correct.gather(1, masked.positions) & masked.is_masked,
                *(gate_loss, predicted, predicted & replaced),
            )
        return LossOutput(loss, sums, corrupted, replaced, -copy.detach(), tokens)

    def token_log_probs(self, hidden: Tensor, batch: Batch, corrupted: Tensor) -> TokenLogProbs:
        """Return the log probabilities of the tokens that the mixture needs."""
        logs = self.mlm.predict(hidden).float().log_softmax(-1)  # (batch, length, vocabulary)
        original, given = (
            logs.gather(-1, t[..., None]).squeeze(-1) for t in (batch.ids, corrupted)
        )
        best, token = logs.detach().max(-1)
        return TokenLogProbs(original, given.detach(), best, token)

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        c, tokens = self.config, max(sums["tokens"], 1)
        metrics = generator_metrics(sums)
        model_loss, gate_loss = sums["model_loss"] / tokens, sums["gate_loss"] / tokens
        kept = c.model_weight * model_loss + c.gate_weight * gate_loss
        return {
            "loss": c.generator_weight * metrics["mlm_loss"] + kept,
            **metrics,
            "replaced_rate": sums["replaced"] / tokens,
            "model_loss": model_loss,
            "model_accuracy": sums["model_correct"] / max(sums["masked"], 1),
            "gate_loss": gate_loss,
            "gate_precision": sums["true_positives"] / max(sums["predicted_replaced"], 1),
            "gate_recall": sums["true_positives"] / max(sums["replaced"], 1),
        }


def mixture(copy: Tensor, log_prob: Tensor, replaced: Tensor) -> Tensor:
    """Return log(D [the input token is original] + (1 - D) p), from the logit of D and log p."""
    predicted = F.logsigmoid(-copy) + log_prob
    return torch.where(replaced, predicted, torch.logaddexp(F.logsigmoid(copy), predicted))


def best_token(log_probs: TokenLogProbs, copy: Tensor, corrupted: Tensor) -> Tensor:
    """Return the mixture's most likely token: the softmax's, or the input token."""
    predicted = F.logsigmoid(-copy)
    copied = torch.logaddexp(predicted + log_probs.input, F.logsigmoid(copy))
    return torch.where(copied >= predicted + log_probs.best, corrupted, log_probs.best_token)
