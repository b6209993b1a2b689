"""A run from its configuration: any vocabulary, and nothing taken for granted."""

from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from electra.config import override
from electra.errors import UserError
from electra.objectives.batch import unpack
from electra.studies.study import row_costs
from electra.text.prepare import prepare
from electra.text.shards import Shards
from electra.text.tokenizer import load_vocabulary, save_tokenizer
from electra.train.pretrain import build_objective, flops_per_row, start
from electra.train.run_config import read_run_config


@pytest.fixture
def foreign_data(corpus, tmp_path):
    """Shards of a vocabulary in which nothing is where BERT has it: other names, ids, holes."""
    words = sorted(set(corpus.read_text().split()))[:-3]  # three words remain unknown
    ids = {word: 3 * place + 7 for place, word in enumerate(words)}  # two holes after each id
    ids |= {"<mask>": 5, "</s>": 300, "<unk>": 6, "<pad>": 301, "<s>": 0}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<mask>", "</s>", "<unk>", "<pad>", "<s>"])
    save_tokenizer(tokenizer, tmp_path / "foreign")
    prepare(
        [corpus],
        tokenizer=tmp_path / "foreign",
        out=tmp_path / "shards",
        length=32,
        workers=1,
        held_out=0.1,
    )
    return tmp_path / "shards"


def test_special_tokens_of_any_vocabulary_are_never_masked(tiny, foreign_data):
    """They are known by their role, not by the ids 101, 102, 103; [UNK] may be masked."""
    shards, vocab = Shards.open(foreign_data), load_vocabulary(foreign_data / "tokenizer")
    assert (vocab.cls, vocab.sep, vocab.mask, vocab.pad) == (0, 300, 5, 301)
    config = replace(tiny, model=replace(tiny.model, vocab_size=vocab.size))
    objective = build_objective(config, vocab)
    batch = unpack(torch.from_numpy(shards.gather("train", torch.arange(400).numpy())))
    assert (batch.ids == vocab.unk).any()
    drawn, corrupted = set(), set()
    for _ in range(10):
        masked = objective.mask(batch)
        drawn |= set(masked.labels[masked.is_masked].tolist())
        assert (masked.inputs == vocab.mask).any()
        outcome = objective(batch, masked, torch.ones(2))
        corrupted |= set(outcome.corrupted.unique().tolist())
    assert not drawn & {vocab.cls, vocab.sep, vocab.mask, vocab.pad}
    assert vocab.unk in drawn
    assert not corrupted & set(vocab.absent)  # an id without a token is never sampled
    assert max(corrupted) < vocab.size


def test_a_run_on_any_vocabulary(tiny, with_train, foreign_data, tmp_path, console):
    from transformers import AutoTokenizer, ElectraForPreTraining

    from electra.api import load

    config = replace(tiny, data=replace(tiny.data, folder=str(foreign_data)))
    out = tmp_path / "run"
    assert start(with_train(config, budget="3steps"), out, console) == 0
    (guesses,) = load(out).fill("the old [MASK] went", top=400)
    assert all(g.token != "None" for g in guesses)
    assert len(load(out).detect("the old farmer")) == 3
    folder = out / "checkpoints" / "step-00000003" / "discriminator"
    assert AutoTokenizer.from_pretrained(folder).mask_token == "<mask>"
    assert ElectraForPreTraining.from_pretrained(folder).config.pad_token_id == 301


@pytest.mark.parametrize("rates", [(0.1, 0.4), (0.4, 0.1)])
def test_a_changing_mask_rate_costs_what_its_highest_would(rates, tiny):
    """Every step has the slots for it."""
    config = override(tiny, ["model.vocab_size=150"])
    changing, highest = (
        override(config, [f"objective.mask_rate={rate}", f"objective.mask_rate_end={end}"])
        for rate, end in (rates, (0.4, 0.0))
    )
    assert flops_per_row(changing) == flops_per_row(highest) == row_costs(changing)[0]
    assert row_costs(changing) == row_costs(highest)


def test_the_resolved_configuration_is_saved(finished, tiny):
    config = read_run_config(finished)
    assert config.model.vocab_size == 150  # the tokenizer's, where the recipe has 0
    assert replace(config, model=replace(config.model, vocab_size=0)) == tiny
    last = finished / "checkpoints" / "step-00000020"
    assert (last / "config.yaml").read_text() == (finished / "config.yaml").read_text()


def test_data_without_held_out_rows_is_refused_before_anything_is_made(
    tiny, tmp_path, console, monkeypatch
):
    original = Shards.rows
    monkeypatch.setattr(
        Shards, "rows", lambda self, split: 0 if split == "held_out" else original(self, split)
    )
    with pytest.raises(UserError, match="no held-out rows"):
        start(tiny, tmp_path / "run", console)
    assert not (tmp_path / "run").exists()


def test_a_failed_run_keeps_its_metrics(tiny, with_train, tmp_path, console):
    """Only a run that was refused before its first step leaves nothing behind."""
    config = replace(tiny, optim=replace(tiny.optim, lr=1e30, warmup=0.0))
    with pytest.raises(UserError, match="not a finite number"):
        start(with_train(config, report_every=1), tmp_path / "run", console)
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_size > 0
    assert (tmp_path / "run" / "config.yaml").exists()


def test_documents_that_share_a_row(tiny, corpus, tokenizer_folder, tmp_path, console):
    """The setting reaches training and held-out text; a two-tower generator cannot follow it."""
    where = {"tokenizer": tokenizer_folder, "out": tmp_path / "packed"}
    prepare([corpus], **where, length=32, layout="packed", workers=1, held_out=0.1)
    config = override(tiny, [f"data.folder={where['out']}", "data.document_mask=true"])
    assert start(config, tmp_path / "run", console) == 0
    stored = read_run_config(tmp_path / "run")
    assert stored.data.document_mask
    shards, vocab = Shards.open(where["out"]), load_vocabulary(where["out"] / "tokenizer")
    objective = build_objective(stored, vocab)
    rows = torch.from_numpy(shards.gather("train", torch.arange(50).numpy()))
    assert (objective.unpack(rows).doc_ids[:, 0] == 1).all()
    assert (objective.unpack(rows).doc_ids == 2).any()
    with pytest.raises(UserError, match=r"data\.document_mask"):
        override(config, ["objective.kind=electric"])
