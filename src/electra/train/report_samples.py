"""Sample sentences of a report: held-out text, corrupted and judged by the run's networks."""

import html
from pathlib import Path

import numpy as np
import torch

from electra.errors import UserError
from electra.hub import corruption, heat_map, inference
from electra.hub.folders import load_discriminator, load_generator
from electra.model_paths import find_model, find_network
from electra.train.data import find_shards, open_shards
from electra.train.run_config import read_run_config

SENTENCES = 4
MAX_TOKENS = 40
"""Tokens of a sample; the rows of shards are longer."""


def render_samples(run: Path) -> str:
    """Return samples of a run as HTML; a sentence says why where there are none."""
    try:
        texts = sample_judged(run)
    except UserError as error:
        return f"<p class='note'>No sample sentences: {html.escape(str(error))}</p>"
    parts = []
    for tokens in texts:
        fills = "".join(
            f"<li><s>{html.escape(t.original or t.token)}</s> → <b>{html.escape(t.token)}</b> "
            "<span>"
            + ", ".join(f"{html.escape(p.token)} {p.probability:.0%}" for p in t.proposals)
            + "</span></li>"
            for t in tokens
            if t.masked
        )
        parts.append(f"{heat_map.heat_map(tokens, clicks=False)}<ul class='fills'>{fills}</ul>")
    return f"{heat_map.legend()}{''.join(parts)}"


def sample_judged(run: Path) -> list[list[heat_map.JudgedToken]]:
    """Corrupt some held-out texts with the last checkpoint's generator and judge them."""
    data = read_run_config(run).data
    shards = open_shards(find_shards(data.folder, data.lengths[0], data.lengths), data)
    folder = find_model(str(run))
    cpu = torch.device("cpu")
    generator = inference.load_network(load_generator, find_network(folder, "generator"), cpu)
    discriminator = inference.load_network(
        load_discriminator, find_network(folder, "discriminator"), cpu
    )
    count = min(SENTENCES, shards.rows("held_out"))
    spread = np.linspace(0, max(0, shards.rows("held_out") - 1), count).astype(np.int64)
    found = []
    for number, row in enumerate(shards.gather("held_out", spread)):
        ids = [i for i in row[: row[-1]].tolist() if i not in generator.vocab.special]
        text = generator.tokenizer.decode(ids[:MAX_TOKENS])
        tokens = corruption.corrupt(generator, text, seed=number, top=3)
        (suspicions,) = inference.detect_tokens(discriminator, [[t.token for t in tokens]])
        found.append(heat_map.judged(generator.tokenizer, tokens, suspicions))
    return found
