"""The labelled task of the demo: is a sentence in order? An encoder with one linear layer."""

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from electra.demo.speeches import Sentence
from electra.models.encoder import Encoder, glorot_linear
from electra.optim.adam import PaperAdam, parameter_groups
from electra.optim.schedule import OptimConfig, learning_rate
from electra.text.tokenizer import Vocabulary

EPOCHS, BATCH = 8, 16
OPTIM = OptimConfig(lr=3e-4, warmup=0.1, weight_decay=0.0)


class Classifier(nn.Module):
    """Dropout and one linear layer on the strongest value of each feature in the sentence.

    differs from the paper, which takes the vector of [CLS]: the toy's one layer cannot gather a
    sentence there.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(0.1)
        self.output = glorot_linear(encoder.config.hidden, 1)

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        hidden = self.encoder(ids, torch.zeros_like(ids), real)
        strongest = hidden.masked_fill(~real[..., None], float("-inf")).amax(1)
        return self.output(self.dropout(strongest)).squeeze(1)  # (batch,)


def encode(
    examples: list[Sentence], tokenizer: Tokenizer, vocab: Vocabulary, length: int
) -> tuple[Tensor, Tensor]:
    """Rows of ids, padded, and the labels."""
    ids = torch.full((len(examples), length), vocab.pad)
    for row, example in enumerate(examples):
        tokens = tokenizer.encode(example.text, add_special_tokens=False).ids[: length - 2]
        ids[row, : len(tokens) + 2] = torch.tensor([vocab.cls, *tokens, vocab.sep])
    return ids, torch.tensor([float(example.disordered) for example in examples])


def fine_tune(
    encoder: Encoder,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    pad_id: int,
    seed: int,
) -> float:
    """Train on the labelled sentences; returns the accuracy on the others."""
    torch.manual_seed(seed)
    model = Classifier(encoder).train()
    optimizer = PaperAdam(parameter_groups(model, OPTIM.weight_decay))
    ids, labels = train
    steps = EPOCHS * (len(ids) // BATCH)
    step = 0
    for _ in range(EPOCHS):
        order = torch.randperm(len(ids))
        for batch in order[: len(ids) // BATCH * BATCH].split(BATCH):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step / steps, OPTIM)
            logits = model(ids[batch], ids[batch] != pad_id)
            F.binary_cross_entropy_with_logits(logits, labels[batch]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), OPTIM.clip)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    model.eval()
    with torch.no_grad():
        right = (model(test[0], test[0] != pad_id) > 0) == test[1].bool()
    return right.float().mean().item()
