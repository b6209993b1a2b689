"""The bench: both sides train on the same data, and the peer is what it says."""

from dataclasses import replace

import pytest
import torch

from electra.bench import pretrain as module
from electra.bench.pretrain import bench_pretrain, build_peer, ours, peer_step, theirs
from electra.errors import UserError
from electra.text.shards import Shards
from electra.text.tokenizer import load_vocabulary
from electra.train.data import rows_at
from electra.train.pretrain import flops_per_row, resolve_data


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


def test_the_first_third_of_the_reports_does_not_count(tiny, console, monkeypatch):
    lines = [{"kind": "train", "step": n, "tokens_per_second": float(n)} for n in range(1, 10)]
    monkeypatch.setattr(module, "start", lambda *_: 0)
    monkeypatch.setattr(module, "read_metrics", lambda _: [{"kind": "held_out"}, *lines])
    found = ours(tiny, 9, 100.0, console)
    assert (found.slowest, found.tokens_per_second, found.fastest) == (4.0, 6.5, 9.0)
    assert found.peak_share == pytest.approx(0.065)


def test_the_peak_is_in_tokens(tiny, console, monkeypatch):
    """As many rows as the peak's FLOPs allow, each of so many tokens."""
    limits = []
    monkeypatch.setattr(module, "measure_peak", lambda *_: 1e12)
    monkeypatch.setattr(module, "ours", lambda config, steps, limit, console: limits.append(limit))
    bench_pretrain(tiny, 9, 0, console)
    filled = resolve_data(tiny)[0]
    assert limits == [pytest.approx(1e12 / flops_per_row(filled) * filled.data.seq_length)]


def test_the_peer_hides_words_and_learns_what_it_hid(tiny, monkeypatch):
    always = replace(tiny, objective=replace(tiny.objective, mask_token_prob=1.0))
    config, shards, vocab = resolve_data(always)
    seen = {}

    def step(pair, optimizer, maskable, vocab, config, dtype):
        seen["maskable"] = maskable
        pair["generator"].register_forward_pre_hook(
            lambda _, given, named: seen.update(named), with_kwargs=True
        )
        return peer_step(pair, optimizer, maskable, vocab, config, dtype)

    monkeypatch.setattr(module, "peer_step", step)
    theirs(config, 4, 1.0, shards, vocab)
    special = (~seen["maskable"]).nonzero().flatten().tolist()
    assert special == list(vocab.special)
    assert torch.equal(seen["labels"] != -100, seen["input_ids"] == vocab.mask)


def test_the_weight_of_the_peer_s_discriminator_is_the_recipe_s(tiny):
    config, shards, vocab = resolve_data(tiny)
    rows = torch.from_numpy(rows_at(shards, 0, 8, 0).astype("int32"))
    maskable = torch.ones(vocab.size, dtype=torch.bool)
    for weight in (0.0, 50.0):
        weighed = replace(config, objective=replace(config.objective, discriminator_weight=weight))
        pair = build_peer(weighed, vocab.pad).train()
        head = pair["discriminator"].discriminator_predictions.dense_prediction.weight
        before = head.detach().clone()
        optimizer = torch.optim.SGD(pair.parameters(), lr=1.0)
        peer_step(pair, optimizer, maskable, vocab, weighed, torch.float32)(rows)
        assert torch.equal(head, before) == (weight == 0)


def test_the_peer_learns_nothing_where_a_short_row_has_nothing_to_hide(tiny):
    always = replace(tiny, objective=replace(tiny.objective, mask_token_prob=1.0))
    config, shards, vocab = resolve_data(always)
    rows = torch.from_numpy(rows_at(shards, 0, 8, 0).astype("int32"))
    rows[0, 4:-2], rows[0, -2:] = vocab.pad, 4  # two words in one segment
    pair, seen = build_peer(config, vocab.pad).train(), {}
    pair["generator"].register_forward_pre_hook(
        lambda _, given, named: seen.update(named), with_kwargs=True
    )
    maskable = torch.ones(vocab.size, dtype=torch.bool)
    maskable[list(vocab.special)] = False
    optimizer = torch.optim.SGD(pair.parameters(), lr=0.1)
    peer_step(pair, optimizer, maskable, vocab, config, torch.float32)(rows)
    assert torch.equal(seen["labels"] != -100, seen["input_ids"] == vocab.mask)
