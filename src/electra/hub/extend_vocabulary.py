"""Give a network rows for new pieces: the mean of the pieces that they consist of."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from electra.models.electra import Discriminator, Generator, absent_token_mask
from electra.models.encoder import resize_token_embeddings_


@torch.no_grad()
def extend_network_(
    network: Generator | Discriminator, first: int, origins: Sequence[Sequence[int]]
) -> None:
    """Add pieces with the ids from `first` on; each starts as the mean of the rows in `origins`.

    This holds for the token embeddings and for the generator's output bias. Networks with the same
    embeddings have the same ones afterwards.
    """
    encoder = network.encoder
    size = max(encoder.config.vocab_size, first + len(origins))
    encoder.config = replace(encoder.config, vocab_size=size)
    rows = encoder.config.table_rows
    table = encoder.embeddings.token.weight
    new = means(table, origins)
    resize_token_embeddings_(encoder.embeddings, rows, encoder.config.init_std)
    encoder.embeddings.token.weight[first : first + len(origins)] = new
    if isinstance(network, Generator):
        bias = torch.zeros(rows, dtype=network.bias.dtype)
        bias[: len(network.bias)] = network.bias
        bias[first : first + len(origins)] = means(network.bias, origins)
        network.bias = nn.Parameter(bias)
        network.absent = absent_token_mask(encoder.config, ())


def means(table: Tensor, origins: Sequence[Sequence[int]]) -> Tensor:
    """Return the mean of some rows of a table, for each list of rows."""
    return torch.stack([table[list(rows)].mean(0) for rows in origins])
