"""Inference compared with direct passes through the networks."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from electra.api import load
from electra.errors import UserError
from electra.hub import inference
from electra.hub.electric import mark_electric
from electra.hub.folders import load_discriminator, load_generator
from electra.text.tokenizer import load_tokenizer, load_vocabulary
from electra.train import checkpoint

TEXT = "the old farmer went to the field to plough the barley ."


@pytest.fixture
def folders(finished):
    return checkpoint.checkpoints(finished)[-1]


@pytest.fixture
def copied(folders, tmp_path):
    """Copies of both network folders, free to change."""
    for name in ("discriminator", "generator"):
        shutil.copytree(folders / name, tmp_path / name)
    return tmp_path


@torch.no_grad()
def test_detect_equals_a_direct_pass(finished, folders):
    folder = folders / "discriminator"
    encoding = load_tokenizer(folder).encode(TEXT)
    ids = torch.tensor([encoding.ids])
    expected = load_discriminator(folder)(ids, torch.zeros_like(ids)).sigmoid()[0, 1:-1]
    tokens = load(finished, "cpu").detect(TEXT)
    assert [t.token for t in tokens] == encoding.tokens[1:-1]
    assert [t.replaced for t in tokens] == pytest.approx(expected.tolist(), abs=1e-6)
    for token in tokens:
        assert TEXT[token.start : token.end] == token.token.removeprefix("##")


@torch.no_grad()
def test_a_long_text_is_read_in_windows(finished, folders):
    """The position table has 64 rows, of which two are for [CLS] and [SEP]."""
    folder = folders / "discriminator"
    text = " ".join([TEXT] * 30)
    encoding = load_tokenizer(folder).encode(text, add_special_tokens=False)
    assert len(encoding.ids) > 3 * 62
    model = load(finished, "cpu")
    tokens = model.detect(text)
    assert [t.token for t in tokens] == encoding.tokens
    assert [(t.start, t.end) for t in tokens] == encoding.offsets
    (states,) = model.encode_tokens([text])
    assert len(states) == len(encoding.ids) + 2
    vocab, discriminator = load_vocabulary(folder), load_discriminator(folder)
    for begin in (0, 62, 124):
        ids = torch.tensor([[vocab.cls, *encoding.ids[begin : begin + 62], vocab.sep]])
        expected = discriminator(ids, torch.zeros_like(ids)).sigmoid()[0, 1:-1].tolist()
        found = [t.replaced for t in tokens[begin : begin + 62]]
        assert found == pytest.approx(expected, abs=1e-6)
        hidden = discriminator.encoder(ids, torch.zeros_like(ids))[0, 1:-1]
        found = torch.from_numpy(states[begin + 1 : begin + 63])
        torch.testing.assert_close(found, hidden, atol=1e-5, rtol=0)


@pytest.mark.parametrize("length", [61, 62, 63, 124])
def test_no_token_is_lost_at_the_edge_of_a_window(length, finished):
    text = " ".join(["the"] * length)
    model = load(finished, "cpu")
    assert len(model.detect(text)) == length
    assert len(model.encode_tokens([text])[0]) == length + 2


@torch.no_grad()
def test_fill_equals_a_direct_pass(finished, folders):
    folder = folders / "generator"
    text = "the old [MASK] went to the [MASK] ."
    tokenizer, vocab = load_tokenizer(folder), load_vocabulary(folder)
    ids = torch.tensor([tokenizer.encode(text).ids])
    positions = (ids[0] == vocab.mask).nonzero().T
    logits = load_generator(folder)(ids, torch.zeros_like(ids), None, positions)[0]
    filled = load(finished, "cpu").fill(text, top=7)
    assert [len(tokens) for tokens in filled] == [7, 7]
    for row, found in zip(logits.softmax(-1), filled, strict=True):
        best = row.topk(7)
        assert [t.token for t in found] == [tokenizer.id_to_token(i) for i in best.indices.tolist()]
        assert [t.probability for t in found] == pytest.approx(best.values.tolist(), abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("place", [0, 20, 31, 32, 100, 179, 199])
def test_a_long_text_is_filled_from_a_window_around_the_mask(place, finished, folders):
    folder = folders / "generator"
    words = (TEXT.removesuffix(" .").split() * 20)[:200]
    words[place] = "[MASK]"
    tokenizer, vocab = load_tokenizer(folder), load_vocabulary(folder)
    ids = tokenizer.encode(" ".join(words), add_special_tokens=False).ids
    mask = ids.index(vocab.mask)
    begin = min(max(0, mask - 31), len(ids) - 62)
    row = torch.tensor([[vocab.cls, *ids[begin : begin + 62], vocab.sep]])
    positions = torch.tensor([[mask - begin + 1]])
    assert row[0, positions[0, 0]] == vocab.mask
    logits = load_generator(folder)(row, torch.zeros_like(row), None, positions)[0, 0]
    (found,) = load(finished, "cpu").fill(" ".join(words), top=3)
    best = logits.softmax(-1).topk(3)
    assert [t.probability for t in found] == pytest.approx(best.values.tolist(), abs=1e-6)
    assert [t.token for t in found] == [tokenizer.id_to_token(i) for i in best.indices.tolist()]


def test_mask_is_written_the_same_for_every_tokenizer(copied):
    folder, text = copied / "generator", "the old [MASK] went to the [MASK] ."
    filled = load(folder).fill(text)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        content = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_text(content.replace("[MASK]", "<mask>"), encoding="utf-8")
    assert load(folder).fill(text) == filled


def test_ids_without_a_token_are_never_predicted(copied):
    """A gap in the vocabulary and rows beyond its end, both made very likely."""
    folder = copied / "generator"
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    size = load_vocabulary(folder).size
    absent = [tokenizer["model"]["vocab"].pop(word) for word in ("farmer", "sailor")]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert set(load_vocabulary(folder).absent) == set(absent)
    weights = load_file(folder / "model.safetensors")
    table, bias = "electra.embeddings.word_embeddings.weight", "generator_lm_head.bias"
    weights[table] = torch.cat([weights[table], torch.zeros(6, weights[table].shape[1])])
    weights[bias] = torch.cat([weights[bias], torch.full((6,), 50.0)])
    weights[bias][absent] = 50.0
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": size + 6}
    (folder / "config.json").write_text(json.dumps(config))
    (found,) = load(folder).fill("the old [MASK] .", top=10_000)
    assert len(found) == size - 2
    tokens = [t.token for t in found]
    assert not {"farmer", "sailor", "None"} & {*tokens}
    assert len(set(tokens)) == len(tokens)
    assert sum(t.probability for t in found) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_text_is_refused(text, finished):
    with pytest.raises(UserError, match="text is empty"):
        load(finished).detect(text)
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        load(finished).fill(text)


def test_a_text_without_a_mask_is_refused(finished):
    with pytest.raises(UserError, match=r"no \[MASK\] in the text"):
        load(finished).fill(TEXT)


@torch.no_grad()
def test_a_score_does_not_depend_on_the_batch(copied, monkeypatch):
    folder = copied / "discriminator"
    mark_electric(folder)
    monkeypatch.setattr(inference, "BATCH_SIZE", 2)
    texts = [TEXT, "the farmer .", "the old farmer went .", "to the field", TEXT[:30]]
    tokenizer, network = load_tokenizer(folder), load_discriminator(folder)
    expected = []
    for text in texts:
        ids = torch.tensor([tokenizer.encode(text).ids])  # [CLS] … [SEP]
        expected.append(-network(ids, torch.zeros_like(ids))[0, 1:-1].sum().item())
    assert load(folder).score(texts) == pytest.approx(expected, abs=1e-4)
