"""All-Tokens MLM: predict the word at every position, with a gate that may copy it (section 3.4).

The paper calls it a combination of BERT and ELECTRA: the gate D is a detector of replaced words,
and the output is D x the word that is there + (1 - D) x the softmax.
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


class Said(NamedTuple):
    """The softmax's log probabilities at each position, (batch, length)."""

    true: Tensor  # of the original word; the only one with a gradient
    here: Tensor  # of the word that is there
    best: Tensor  # of the most likely one
    word: Tensor  # the most likely one


class AllTokensMlm(ReplaceMlm):
    """The gate is trained through the mixture, and by its own loss: is this word the original?"""

    metric_names = (
        *GENERATOR_METRIC_SUMS,
        *("tokens", "replaced", "model_loss", "model_right", "gate_loss", "flagged", "caught"),
    )
    auc = "gate_auc"

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: Generator | FrequencyGenerator,
        mlm: Generator,
        ids: VocabInfo,
    ) -> None:
        super().__init__(config, generator, mlm, ids)
        self.gate = glorot_linear(mlm.encoder.config.hidden, 1)

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        c = self.config
        ids, segments, attention_mask, doc_ids = batch
        guesses = self.run_generator(batch, masked)
        corrupted, replaced = self.corrupt(batch, masked, guesses.samples)

        hidden = self.mlm.encoder(corrupted, segments, doc_ids)
        said = self.say(hidden, batch, corrupted)
        copy = self.gate(hidden).squeeze(-1).float()  # (batch, length) the logit of D
        nll = -mixture(copy, said.true, replaced)
        gate = F.binary_cross_entropy_with_logits(-copy, replaced.float(), reduction="none")
        model_loss, gate_loss = (nll * attention_mask).sum(), (gate * attention_mask).sum()
        kept = (c.model_weight * model_loss + c.gate_weight * gate_loss) / totals[1]
        loss = c.generator_weight * guesses.loss / totals[0] + kept
        with torch.no_grad():
            flagged = (copy < 0) & attention_mask
            right = (best_guess(said, copy, corrupted) == ids).gather(1, masked.positions)
            sums = sum_each(
                *generator_sums(guesses, masked),
                *(attention_mask, replaced, model_loss, right & masked.is_masked),
                *(gate_loss, flagged, flagged & replaced),
            )
        return LossOutput(loss, sums, corrupted, replaced, -copy.detach(), attention_mask)

    def say(self, hidden: Tensor, batch: Batch, corrupted: Tensor) -> "Said":
        """What the softmax gives the words that matter."""
        logs = self.mlm.predict(hidden).float().log_softmax(-1)  # (batch, length, vocabulary)
        true, here = (logs.gather(-1, t[..., None]).squeeze(-1) for t in (batch.ids, corrupted))
        best, word = logs.detach().max(-1)
        return Said(true, here.detach(), best, word)

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        c, tokens = self.config, max(sums["tokens"], 1)
        figures = generator_metrics(sums)
        model_loss, gate_loss = sums["model_loss"] / tokens, sums["gate_loss"] / tokens
        kept = c.model_weight * model_loss + c.gate_weight * gate_loss
        return {
            "loss": c.generator_weight * figures["mlm_loss"] + kept,
            **figures,
            "replaced_rate": sums["replaced"] / tokens,
            "model_loss": model_loss,
            "model_accuracy": sums["model_right"] / max(sums["masked"], 1),
            "gate_loss": gate_loss,
            "gate_precision": sums["caught"] / max(sums["flagged"], 1),
            "gate_recall": sums["caught"] / max(sums["replaced"], 1),
        }


def mixture(copy: Tensor, words: Tensor, replaced: Tensor) -> Tensor:
    """log(D [the word is the original] + (1 - D) p), from the logit of D and log p."""
    predicted = F.logsigmoid(-copy) + words
    return torch.where(replaced, predicted, torch.logaddexp(F.logsigmoid(copy), predicted))


def best_guess(said: Said, copy: Tensor, corrupted: Tensor) -> Tensor:
    """The most likely word of the mixture: the softmax's, or the one that is there."""
    predicted = F.logsigmoid(-copy)
    here = torch.logaddexp(predicted + said.here, F.logsigmoid(copy))
    return torch.where(here >= predicted + said.best, corrupted, said.word)
