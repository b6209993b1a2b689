"""The bench: both sides train on the same data, and the peer is what it says."""

import json
from dataclasses import replace

import pytest
import torch

from electra.bench.pretrain import bench_pretrain, build_peer, peer_step
from electra.errors import UserError
from electra.text.shards import Shards
from electra.text.tokenizer import load_vocabulary
from electra.train.data import rows_at


def test_both_sides_are_measured(tiny, console):
    found = bench_pretrain(tiny, 9, 4, console)
    assert set(found) == {"electra", "transformers"}
    for speed in found.values():
        assert 0 < speed.slowest <= speed.tokens_per_second <= speed.fastest
        assert 0 < speed.peak_share < 1
    ours, peer = found["electra"], found["transformers"]
    ratio = ours.tokens_per_second / peer.tokens_per_second
    assert ours.peak_share / peer.peak_share == pytest.approx(ratio)  # one yardstick for both
    assert set(bench_pretrain(tiny, 9, 0, console)) == {"electra"}


def test_the_peer_learns(tiny):
    """A bench against a loop that does not train would be none."""
    shards = Shards.open(tiny.data.folder)
    vocab = load_vocabulary(shards.tokenizer)
    config = replace(tiny, model=replace(tiny.model, vocab_size=vocab.size))
    torch.manual_seed(0)
    pair = build_peer(config, vocab.pad).train()
    tables = pair["discriminator"].electra.embeddings
    assert pair["generator"].electra.embeddings is tables
    assert pair["generator"].generator_lm_head.weight is tables.word_embeddings.weight
    optimizer = torch.optim.AdamW(pair.parameters(), lr=3e-3)
    maskable = torch.ones(vocab.size, dtype=torch.bool)
    maskable[list(vocab.special)] = False
    take = peer_step(pair, optimizer, maskable, vocab, config, torch.float32)
    rows = torch.from_numpy(rows_at(shards, 0, 16, 0).astype("int32"))
    losses = []
    pair["generator"].register_forward_hook(lambda *found: losses.append(found[2].loss.item()))
    for _ in range(40):
        take(rows)
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])


def test_another_objective_has_no_peer(tiny, console):
    other = replace(tiny, objective=replace(tiny.objective, kind="mlm"))
    with pytest.raises(UserError, match=r"objective\.kind=rtd"):
        bench_pretrain(other, 9, 0, console)


def test_the_command(electra, refused, data_folder, tmp_path):
    sizes = ("model.hidden=32", "model.embedding=16", "data.length=32", "data.batch=8")
    command = ("bench", "pretrain", "toy", *sizes, "train.device=cpu", "--steps", 9)
    several = ("--peer-steps", 4, "--batches", "4,8", "--json")
    code, out, _ = electra(*command, "--data", data_folder, *several)
    assert code == 0
    found = json.loads(out)
    assert set(found) == {"4", "8"}
    assert all(set(both) == {"electra", "transformers"} for both in found.values())
    code, out, _ = electra(*command, "--data", data_folder, "--peer-steps", 4)
    assert code == 0
    assert "times the peer" in out
    assert "data.batch" in refused(*command, "--data", data_folder, "--batches", "4,many")
    assert str(tmp_path / "none") in refused(*command, "--data", tmp_path / "none")
