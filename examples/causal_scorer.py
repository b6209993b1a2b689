"""Let harnesses for causal language models score sentences with a discriminator: MODEL OUT.

Copies the folder MODEL to OUT together with this file, which then is the code that
`AutoModelForCausalLM.from_pretrained(OUT, trust_remote_code=True)` runs. The log probability of a
token is log P(original) of the discriminator, as in `electra probe`, or minus the energy of
Electric: one forward pass that reads the whole sentence.
"""

import json
import math
import shutil
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, ElectraForPreTraining
from transformers.modeling_outputs import CausalLMOutput

REPLACED_LOGIT = math.log(0.08 / 0.92)  # of the tokens in pre-training, about 8 % are replaced


class ElectraAsCausalLM(ElectraForPreTraining):
    """A discriminator whose output at position t - 1 scores token t, as in a causal model."""

    def forward(self, input_ids, attention_mask=None, **_):
        """Return logits (batch, length, vocabulary), whose log softmax has the scores."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        # A causal harness cuts off the last token, which is the [SEP] of the longest rows.
        ids = F.pad(input_ids, (0, 1), value=self.config.pad_token_id)
        mask = F.pad(attention_mask, (0, 1))
        rows, end = torch.arange(len(ids), device=ids.device), mask.sum(1)
        without_sep = ids[rows, end - 1] != self.config.sep_token_id
        ids[rows[without_sep], end[without_sep]] = self.config.sep_token_id
        mask[rows[without_sep], end[without_sep]] = 1

        logits = super().forward(ids, attention_mask=mask).logits[:, 1:].float()
        if getattr(self.config, "electra_objective", "") == "electric":
            log_probs = (-logits).clamp(max=-1e-6)  # an energy may be negative
        else:
            log_probs = F.logsigmoid(REPLACED_LOGIT - logits)
        # The other tokens of the vocabulary share the rest of the probability.
        others = torch.log(-torch.expm1(log_probs)) - math.log(self.config.vocab_size - 1)
        scores = others[..., None].repeat(1, 1, self.config.vocab_size)
        return CausalLMOutput(logits=scores.scatter(2, ids[:, 1:, None], log_probs[..., None]))


if __name__ == "__main__":
    model, out = Path(sys.argv[1]), Path(sys.argv[2])
    shutil.copytree(model, out)
    shutil.copy(__file__, out)
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    config["sep_token_id"] = AutoTokenizer.from_pretrained(model).sep_token_id
    config["auto_map"] = {"AutoModelForCausalLM": f"{Path(__file__).stem}.ElectraAsCausalLM"}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
