"""Both networks against transformers: hidden states and logits, with padding and two segments."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, ElectraForMaskedLM, ElectraForPreTraining

from electra.errors import UserError
from electra.hub.folders import export, load_discriminator, load_encoder, load_generator
from electra.models.electra import GeneratorConfig, build_pair
from electra.models.encoder import EncoderConfig

VOCAB = 1000
SHAPES = {
    "factorised": (EncoderConfig(layers=3, hidden=128, embedding=64, vocab_size=VOCAB), 0.5),
    "equal widths": (EncoderConfig(layers=2, hidden=64, embedding=64, vocab_size=VOCAB), 1.0),
    "own heads and feed-forward": (
        EncoderConfig(
            layers=2, hidden=96, heads=6, feed_forward=200, embedding=32, vocab_size=VOCAB
        ),
        0.5,
    ),
}


@pytest.fixture(params=SHAPES)
def pair(request):
    config, width = SHAPES[request.param]
    torch.manual_seed(0)
    generator, discriminator = build_pair(config, GeneratorConfig(width=width))
    for p in {*generator.parameters(), *discriminator.parameters()}:
        p.data += 0.1 * torch.randn_like(p)  # biases and norms must matter too
    return generator.eval(), discriminator.eval()


@pytest.fixture
def inputs():
    torch.manual_seed(1)
    lengths = torch.tensor([48, 30, 9, 41])[:, None]
    place = torch.arange(48)[None]
    attention_mask = place < lengths
    segments = ((place >= lengths // 2) & attention_mask).long()
    ids = torch.where(attention_mask, torch.randint(5, VOCAB, (4, 48)), 0)
    return ids, segments, attention_mask


@torch.no_grad()
def test_discriminator(pair, inputs, tmp_path):
    _, ours = pair
    ids, segments, attention_mask = inputs
    export(ours, tmp_path, pad_id=0)
    given = {"input_ids": ids, "token_type_ids": segments, "attention_mask": attention_mask.long()}
    theirs = ElectraForPreTraining.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(
        ours(ids, segments, attention_mask), theirs(**given).logits, atol=1e-5, rtol=0
    )
    body = AutoModel.from_pretrained(tmp_path).eval()
    hidden = body(**given).last_hidden_state
    torch.testing.assert_close(
        ours.encoder(ids, segments, attention_mask), hidden, atol=1e-5, rtol=0
    )


@torch.no_grad()
def test_generator(pair, inputs, tmp_path):
    ours, _ = pair
    ids, segments, attention_mask = inputs
    export(ours, tmp_path, pad_id=0)
    theirs, report = ElectraForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    positions = torch.tensor([[1, 40, 7], [2, 3, 29], [1, 2, 8], [0, 20, 40]])
    logits = theirs.eval()(
        ids, attention_mask=attention_mask.long(), token_type_ids=segments
    ).logits
    expected = logits.gather(1, positions[..., None].expand(-1, -1, VOCAB))
    found = ours(ids, segments, attention_mask, positions)
    torch.testing.assert_close(found[..., :VOCAB], expected, atol=1e-5, rtol=0)
    assert (found[..., VOCAB:] == float("-inf")).all()  # padded ids have no probability
    assert logits.shape[-1] == VOCAB  # and are not exported


@torch.no_grad()
def test_folders_load_back(pair, inputs, tmp_path):
    generator, discriminator = pair
    ids, segments, attention_mask = inputs
    export(generator, tmp_path / "g", pad_id=0)
    export(discriminator, tmp_path / "d", pad_id=0)
    again = load_discriminator(tmp_path / "d")
    assert torch.equal(
        again(ids, segments, attention_mask), discriminator(ids, segments, attention_mask)
    )
    positions = torch.zeros(4, 1, dtype=torch.long)
    logits = load_generator(tmp_path / "g")(ids, segments, attention_mask, positions)
    expected = generator(ids, segments, attention_mask, positions)[..., :VOCAB]
    torch.testing.assert_close(logits, expected)


@torch.no_grad()
def test_an_encoder_that_transformers_saved_without_a_head(pair, inputs, tmp_path):
    """Then its names are those of the other classes without their beginning."""
    _, ours = pair
    export(ours, tmp_path / "d", pad_id=0)
    AutoModel.from_pretrained(tmp_path / "d").save_pretrained(tmp_path / "body")
    assert torch.equal(load_encoder(tmp_path / "body")(*inputs), ours.encoder(*inputs))
    with pytest.raises(UserError, match="missing discriminator_predictions"):
        load_discriminator(tmp_path / "body")


@torch.no_grad()
def test_tensorflows_names_of_the_norms(pair, inputs, tmp_path):
    """As in files that were converted long ago, and in some that transformers 5.0 saves."""
    for network, load in zip(pair, (load_generator, load_discriminator), strict=True):
        export(network, tmp_path, pad_id=0)
        weights = load_file(tmp_path / "model.safetensors")
        names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, old in names.items():
            for name in [name for name in weights if name.endswith(new)]:
                weights[name.replace(new, old)] = weights.pop(name)
        save_file(weights, tmp_path / "model.safetensors")
        assert torch.equal(load(tmp_path).encoder(*inputs), network.encoder(*inputs))


def test_untied_output_weights_are_refused(pair, tmp_path):
    generator, _ = pair
    export(generator, tmp_path, pad_id=0)
    weights = load_file(tmp_path / "model.safetensors")
    table = weights["electra.embeddings.word_embeddings.weight"]
    weights["generator_lm_head.weight"] = table.clone()
    save_file(weights, tmp_path / "model.safetensors")
    load_generator(tmp_path)  # the same matrix under its second name
    weights["generator_lm_head.weight"] = table + 1
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="differ from the token embeddings"):
        load_generator(tmp_path)


def test_a_foreign_or_incomplete_folder_is_refused(pair, tmp_path):
    generator, discriminator = pair
    export(generator, tmp_path / "g", pad_id=0)
    export(discriminator, tmp_path / "d", pad_id=0)
    with pytest.raises(UserError, match="not hold the weights of a discriminator"):
        load_discriminator(tmp_path / "g")  # a random head would train and look fine
    weights = load_file(tmp_path / "d" / "model.safetensors")
    del weights["electra.encoder.layer.1.output.dense.bias"]
    save_file(weights, tmp_path / "d" / "model.safetensors")
    with pytest.raises(UserError, match=r"missing electra.encoder.layer.1"):
        load_discriminator(tmp_path / "d")
    (tmp_path / "d" / "model.safetensors").unlink()
    (tmp_path / "d" / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(UserError, match="pickle"):
        load_discriminator(tmp_path / "d")
