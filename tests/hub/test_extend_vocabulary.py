"""New rows are means of old ones; everything else computes what it computed before."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, ElectraForMaskedLM, ElectraForPreTraining

from electra.hub.extend_vocabulary import extend_network_
from electra.models.electra import Generator
from electra.models.encoder import Encoder, EncoderConfig
from electra.text.tokenizer import load_tokenizer
from electra.train import checkpoint

WORD = "electra.embeddings.word_embeddings.weight"
TEXT = "the cardiologist . the cardiology , the cardiology .\n\n" * 30


@pytest.fixture
def extended(electra, finished, tmp_path):
    """An imported run with new pieces, and what the command printed."""
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    code, out, err = electra(
        *("import", finished, "--out", tmp_path / "model", "--extend-vocabulary", 4),
        *("--text", tmp_path / "text.txt"),
    )
    assert code == 0, err
    return tmp_path / "model", out


def test_new_rows_are_means_and_the_others_stay(extended, finished):
    folder, _ = extended
    source = checkpoint.checkpoints(finished)[-1]
    old, new = (load_tokenizer(f / "discriminator") for f in (source, folder))
    size = old.get_vocab_size()
    assert new.get_vocab_size() > size
    for name in ("discriminator", "generator"):
        before, after = (load_file(f / name / "model.safetensors") for f in (source, folder))
        assert json.loads((folder / name / "config.json").read_text())["vocab_size"] == len(
            after[WORD]
        )
        for key, tensor in before.items():
            assert torch.equal(after[key][: len(tensor)], tensor), key
        for word in ("cardiologist", "cardiology"):
            ids = old.encode(word, add_special_tokens=False).ids
            (new_id,) = new.encode(word, add_special_tokens=False).ids
            assert len(ids) > 1
            assert new_id >= size
            for key in (WORD, "generator_lm_head.bias"):
                if key in before:
                    mean = sum(before[key][i].double() for i in ids) / len(ids)
                    torch.testing.assert_close(after[key][new_id].double(), mean, atol=1e-7, rtol=0)
    tables = (
        load_file(folder / n / "model.safetensors")[WORD] for n in ("discriminator", "generator")
    )
    assert torch.equal(*tables)  # ties are kept


def test_transformers_computes_the_same_for_old_pieces(extended, finished):
    folder, _ = extended
    source = checkpoint.checkpoints(finished)[-1]
    tokenizer = AutoTokenizer.from_pretrained(folder / "discriminator")
    inputs = tokenizer("the old farmer went to the field .", return_tensors="pt")
    size = load_tokenizer(source / "discriminator").get_vocab_size()
    assert inputs["input_ids"].max() < size
    for kind, name in (
        (ElectraForPreTraining, "discriminator"),
        (ElectraForMaskedLM, "generator"),
    ):
        with torch.no_grad():
            before, after = (
                kind.from_pretrained(f / name).eval()(**inputs).logits for f in (source, folder)
            )
        if name == "generator":
            assert after.shape[-1] > size
            after = after[..., :size]
        torch.testing.assert_close(after, before, atol=1e-6, rtol=0)
    assert tokenizer.tokenize("cardiology") == ["cardiology"]


def test_the_command_reports_pieces_per_word(extended):
    _, said = extended
    assert "new pieces: 2 (no others occur twice, so not 4)" in said
    assert "  cardiology = " in said
    line = next(line for line in said.splitlines() if line.startswith("pieces per word: "))
    before, after = (float(part.split()[0]) for part in line.split(": ")[1].split(", "))
    assert after == 1.0 < before


def test_spare_rows_of_the_model_are_taken_first():
    """A model may have more rows than its tokenizer has tokens."""
    torch.manual_seed(0)
    config = EncoderConfig(layers=1, hidden=8, heads=1, embedding=4, vocab_size=10)
    network = Generator(Encoder(config))
    with torch.no_grad():
        network.bias.normal_()
    before = network.encoder.embeddings.token.weight.detach().clone()
    bias = network.bias.detach().clone()
    extend_network_(network, 7, [(1, 2), (3, 3, 5)])
    assert network.encoder.config.vocab_size == 10
    table = network.encoder.embeddings.token.weight
    torch.testing.assert_close(table[7], (before[1] + before[2]) / 2)
    torch.testing.assert_close(table[8], (2 * before[3] + before[5]) / 3)
    torch.testing.assert_close(network.bias[8], (2 * bias[3] + bias[5]) / 3)
    for row in (*range(7), 9):
        assert torch.equal(table[row], before[row])
        assert torch.equal(network.bias[row], bias[row])


def test_bad_input_leaves_nothing_behind(refused, finished, tmp_path):
    out = tmp_path / "model"
    start = ("import", finished, "--out", out)
    assert "go together" in refused(*start, "--extend-vocabulary", 5)
    assert "go together" in refused(*start, "--text", tmp_path)
    assert "nothing.txt" in refused(
        *start, "--extend-vocabulary", 5, "--text", tmp_path / "nothing.txt"
    )
    (tmp_path / "known.txt").write_text("the old farmer\n")
    assert "no new pieces" in refused(
        *start, "--extend-vocabulary", 5, "--text", tmp_path / "known.txt"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["known.txt"]
