"""A fused form is used only for exactly the modules that it stands for.

Each case changes what a network computes. The objective has to compute the same with fused kernels
as without, and a warning has to name the module that keeps running as plain modules.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.exact import encoder_mismatch
from electra.kernels.modules import encoder_shape
from electra.models import encoder as encoder_module
from electra.models.electra import Discriminator, Generator
from electra.models.encoder import Attention, Encoder, EncoderConfig, Layer, set_dropout_
from electra.objectives.all_tokens_mlm import AllTokensMlm
from electra.objectives.objective import Objective
from electra.train.accelerate import describe_kernels, use_fused_kernels_

TOKENS = 60


class PreNormLayer(Layer):
    """Another network with the same parameters."""

    def forward(self, x, mask):
        x = x + self.dropout(self.attend(self.attention_norm(x), mask))
        y = self.output_norm(x)
        return x + self.dropout(type(self).feed_forward(self, y))

    def feed_forward(self, y):
        up, down = [m for m in self.children() if isinstance(m, nn.Linear)][2:]
        return down(F.gelu(up(y)))


class ReluLayer(Layer):
    """Another activation."""

    def forward(self, x, mask):
        x = self.attention_norm(x + self.dropout(self.attend(x, mask)))
        up, down = [m for m in self.children() if isinstance(m, nn.Linear)][2:]
        return self.output_norm(x + self.dropout(down(F.relu(up(x)))))


class SharpAttention(Attention):
    """Another temperature of the softmax."""

    def forward(self, q, k, v, mask):
        return super().forward(2 * q, k, v, mask)


class OtherGenerator(Generator):
    def predict(self, hidden):
        return super().predict(hidden) * 0.5


class OtherDiscriminator(Discriminator):
    def forward(self, *given):
        return super().forward(*given) * 0.5


def last_layer(objective):
    return objective.discriminator.encoder.layers[-1]


def become(kind):
    def change(objective):
        last_layer(objective).__class__ = kind

    return change


def other_attention(objective):
    last_layer(objective).attention.__class__ = SharpAttention


def other_eps(objective):
    last_layer(objective).output_norm.eps = 0.5


def other_dropout(objective):
    last_layer(objective).dropout.p = 0.9


def other_attention_dropout(objective):
    last_layer(objective).attention.dropout = 0.9


def no_embedding_dropout(objective):
    objective.discriminator.encoder.embeddings.dropout = nn.Identity()


def other_embedding_dropout(objective):
    objective.discriminator.encoder.embeddings.dropout.p = 0.9


def extra_parameter(objective):
    last_layer(objective).scale = nn.Parameter(torch.ones(()))


def extra_module(objective):
    last_layer(objective).adapter = nn.Linear(4, 4)


def missing_bias(objective):
    last_layer(objective).qkv.bias = None


def forward_hook(objective):
    last_layer(objective).register_forward_hook(lambda module, given, out: out * 2)


def deep_hook(objective):
    last_layer(objective).output_norm.register_forward_hook(lambda module, given, out: out + 1)


def own_forward(objective):
    layer = last_layer(objective)
    layer.forward = lambda x, mask: 2 * Layer.forward(layer, x, mask)


def own_attend(objective):
    layer = last_layer(objective)
    layer.attend = lambda x, mask: 2 * Layer.attend(layer, x, mask)


def other_generator(objective):
    objective.generator.__class__ = OtherGenerator


def other_discriminator(objective):
    objective.discriminator.__class__ = OtherDiscriminator


def head_eps(objective):
    objective.generator.norm.eps = 0.5


def head_hook(objective):
    objective.discriminator.dense.register_forward_hook(lambda module, given, out: out * 2)


def generator_hook(objective):
    objective.generator.register_forward_hook(lambda module, given, out: out * 0.5)


CASES = {
    become(PreNormLayer): "discriminator encoder .*: layer 1 is PreNormLayer, not Layer",
    become(ReluLayer): "discriminator encoder .*: layer 1 is ReluLayer, not Layer",
    other_attention: "layer 1 attention is SharpAttention, not Attention",
    other_eps: "layer 1 output_norm has eps=0.5, not 1e-12",
    other_dropout: "layer 1 dropout has p=0.9, not 0.0",
    other_attention_dropout: "layer 1 attention has dropout=0.9, not 0.0",
    extra_parameter: "layer 1 has an extra parameter scale",
    extra_module: "layer 1 adapter is not part of Encoder",
    missing_bias: "layer 1 qkv has no bias",
    forward_hook: "layer 1 has hooks",
    deep_hook: "layer 1 output_norm has hooks",
    own_forward: "layer 1 overrides forward",
    own_attend: "layer 1 overrides attend",
    other_generator: "generator head .*: it is OtherGenerator, not Generator",
    other_discriminator: "discriminator head .*: it is OtherDiscriminator, not Discriminator",
    head_eps: "generator head .*: norm has eps=0.5, not 1e-12",
    head_hook: "discriminator head .*: dense has hooks",
    generator_hook: "generator head .*: it has hooks",
}


def test_layers_that_a_setting_selects_are_not_fused(monkeypatch):
    config = EncoderConfig(layers=2, hidden=64, embedding=32, vocab_size=100)
    assert encoder_mismatch(Encoder(config)) is None
    monkeypatch.setattr(encoder_module, "Layer", ReluLayer)  # as a branch in Encoder would
    assert encoder_mismatch(Encoder(config)) == "layer 0 is ReluLayer, not Layer"


@pytest.fixture
def same(text, agreed, ask, near):
    """`same(objective, change)`: what an objective computes before and after `change`."""

    def check(objective, change) -> None:
        batch = text(3, 24, TOKENS)
        torch.manual_seed(3)
        masked = objective.mask(batch)
        agreed(masked, TOKENS)
        outcomes = []
        for step in (lambda: None, change):
            step()
            torch.manual_seed(7)
            outcomes.append(ask(objective, batch, masked)[0])
        wanted, found = outcomes
        near(found.loss, wanted.loss, "loss")
        near(found.metric_sums, wanted.metric_sums, "sums")
        real = batch.attention_mask
        near(found.logits[real], wanted.logits[real], "scores", 1e-4)

    return check


@pytest.mark.parametrize("change", CASES, ids=lambda change: change.__name__)
def test_what_is_not_exactly_the_module_runs_as_it_is(change, make, same):
    objective = make("rtd", model={"layers": 2}).eval()
    if change in (other_dropout, other_attention_dropout):  # the other rate has to count
        objective.train()
    change(objective)

    def accelerate():
        with pytest.warns(UserWarning, match=CASES[change]) as told:
            use_fused_kernels_(objective)
        assert len(told) == 1

    if objective.training:  # other random numbers: only that the plain modules run
        accelerate()
        assert "forward" not in vars(objective.discriminator.encoder)
    else:
        same(objective, accelerate)


def test_embeddings_without_dropout_run_as_they_are(make):
    """Both networks: they share the embeddings."""
    objective = make("rtd")
    no_embedding_dropout(objective)
    with pytest.warns(UserWarning, match="embeddings dropout is Identity, not Dropout") as told:
        use_fused_kernels_(objective)
    assert len(told) == 2
    assert "forward" not in vars(objective.discriminator.encoder)


def new_layer(objective):
    layers = objective.discriminator.encoder.layers
    torch.manual_seed(5)
    layers[-1] = PreNormLayer(objective.discriminator.encoder.config).to(layers[0].qkv.weight)
    layers[-1].eval()


def own_predict(objective):
    generator = objective.generator
    generator.predict = lambda hidden: 0.5 * Generator.predict(generator, hidden)


CHANGED_LATER = [
    *(forward_hook, deep_hook, head_hook, generator_hook, other_eps, head_eps, own_attend),
    no_embedding_dropout,
    *(become(PreNormLayer), other_attention, extra_module, other_discriminator, new_layer),
    *(other_generator, own_predict),
]


@pytest.mark.filterwarnings("ignore:fused kernels")
@pytest.mark.parametrize("change", CHANGED_LATER, ids=lambda change: change.__name__)
def test_what_is_changed_later_counts(change, make, text, agreed, ask, near):
    """As without fused kernels."""
    batch, outcomes = text(3, 24, TOKENS), []
    for fused in (False, True):
        objective = make("rtd", model={"layers": 2}).eval()
        torch.manual_seed(3)
        masked = objective.mask(batch)
        agreed(masked, TOKENS)
        if fused:
            use_fused_kernels_(objective)
        change(objective)
        outcomes.append(ask(objective, batch, masked)[0])
    near(outcomes[1].loss, outcomes[0].loss)


@pytest.mark.parametrize(
    "change", [other_dropout, other_attention_dropout, other_embedding_dropout]
)
def test_dropout_that_is_changed_later_counts(change, make, text, monkeypatch):
    objective, batch = make("rtd", model={"layers": 2}).train(), text(2, 24, TOKENS)
    use_fused_kernels_(objective)
    encoder = objective.discriminator.encoder
    first, second = (encoder(*batch[:3]) for _ in range(2))
    assert torch.equal(first, second)
    change(objective)
    with pytest.warns(UserWarning, match=r"an encoder runs as plain modules: layer \d"):
        first, second = (encoder(*batch[:3]) for _ in range(2))
    assert not torch.equal(first, second)


def test_dropout_may_be_off_for_a_part_of_a_run(make, text, recwarn):
    """The kernels follow `set_dropout_`, and stay in use."""
    objective = make("rtd", model={"layers": 2, "dropout": 0.5}).train()
    use_fused_kernels_(objective)
    encoder, batch = objective.discriminator.encoder, text(2, 24, TOKENS)
    for on in (True, False, True):
        set_dropout_(encoder, on=on)
        first, second = (encoder(*batch[:3]) for _ in range(2))
        assert torch.equal(first, second) != on
        assert encoder_shape(encoder, 2, 24, torch.float32).dropout == 0.5 * on
    assert not recwarn.list


def test_a_module_in_another_mode_counts(make, text):
    """Dropout of one layer is switched off."""
    objective, batch = make("rtd", model={"dropout": 0.5}).train(), text(2, 24, TOKENS)
    use_fused_kernels_(objective)
    encoder = objective.discriminator.encoder
    for part in encoder.modules():
        if part is not encoder:
            part.eval()
    with pytest.warns(UserWarning, match="is in evaluation mode, unlike the encoder"):
        first, second = (encoder(*batch[:3]) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("rtd", "run_mlm"),
        ("rtd", "mask"),
        ("rtd", "corrupt"),
        ("rtd", "detection_loss"),
        ("all-tokens-mlm", "token_log_probs"),
    ],
)
@pytest.mark.parametrize("where", ["class", "instance"])
def test_methods_of_an_objective_that_are_its_own_stay(where, kind, method, make):
    objective = make(kind)
    fused = {"mask": "mask_batch"}.get(method, method)

    def own(*given, **options):
        return None

    if where == "class":
        objective.__class__ = type("Other", (type(objective),), {method: own})
    else:
        setattr(objective, method, own)
    with pytest.warns(UserWarning, match=f"fused kernels: {fused} runs .* overrides {method}"):
        use_fused_kernels_(objective)
    assert vars(objective).get(fused) in (None, own)
    assert issubclass(AllTokensMlm, Objective)


def test_the_exact_modules_say_nothing_and_can_be_fused_twice(make, recwarn):
    objective = make("rtd")
    use_fused_kernels_(objective)
    use_fused_kernels_(objective)
    assert not recwarn
    assert "forward" in vars(objective.discriminator.encoder)


def test_kernels_are_described(make):
    objective = make("rtd")
    assert describe_kernels(objective, 8, 128) == "plain modules"
    last_layer(objective).__class__ = PreNormLayer
    with pytest.warns(UserWarning, match="PreNormLayer"):
        use_fused_kernels_(objective)
    found = describe_kernels(objective, 8, 128)
    assert "discriminator plain modules (layer 0 is PreNormLayer, not Layer)" in found
    assert "generator GEMM (Triton, Hopper) + attention (Triton), MLM loss (Triton)" in found


def test_a_two_tower_generator_is_described(make):
    objective = make("electric")
    use_fused_kernels_(objective)
    assert "generator plain modules (two towers)" in describe_kernels(objective, 8, 128)


def test_a_loss_that_is_not_fused_is_not_described(make):
    objective = make("adversarial")
    use_fused_kernels_(objective)
    assert "MLM loss" not in describe_kernels(objective, 8, 128)

    objective = make("rtd")
    objective.generator.__class__ = type("OtherGenerator", (Generator,), {})
    with pytest.warns(UserWarning, match="OtherGenerator"):
        use_fused_kernels_(objective)
    assert "MLM loss" not in describe_kernels(objective, 8, 128)
