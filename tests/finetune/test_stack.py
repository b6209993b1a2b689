"""Stacked seeds compute what the single networks compute."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from electra.errors import UserError
from electra.finetune.kinds import TaskKind, make_kind
from electra.finetune.stack import DropoutRng, StackedDropout, finite_seeds, stack, unstack_
from electra.hub.heads import TaskCard
from electra.models.encoder import Encoder, EncoderConfig
from electra.models.heads import TaskModel
from electra.optim.adam import PaperAdam, parameter_groups
from electra.optim.stacked import StackedAdam

CPU = torch.device("cpu")
CONFIG = EncoderConfig(layers=2, hidden=32, heads=2, embedding=16, max_positions=16, vocab_size=50)


def make(name: str, head: str = "paper", outputs: int = 3, **card) -> TaskKind:
    """A kind with `outputs` labels; for questions, 0 means that all have an answer."""
    labels = [str(i) for i in range(outputs)]
    return make_kind(
        TaskCard(
            name="made", kind=name, labels=labels, head=head, has_unanswerable=outputs > 0, **card
        )
    )


def network(seed: int, kind: str = "classify", head: str = "paper") -> TaskModel:
    torch.manual_seed(seed)
    encoder = Encoder(CONFIG)
    return TaskModel(encoder, make(kind, head).build_head(encoder))


def rows(count: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 50, (count, 10), generator=rng)
    attention_mask = torch.arange(10) < torch.randint(4, 11, (count, 1), generator=rng)
    segments = (torch.arange(10) >= torch.randint(2, 9, (count, 1), generator=rng)).long()
    return ids, segments, attention_mask


def logits(model: TaskModel, ids, segments, attention_mask) -> torch.Tensor:
    return model.head(model.encoder(ids, segments, attention_mask), attention_mask)


def test_stack_equals_the_single_networks():
    for kind, head in (("classify", "paper"), ("classify", "transformers"), ("tag", "paper")):
        networks = [network(seed, kind, head).eval() for seed in range(3)]
        whole = stack(networks, DropoutRng(range(3), CPU)).eval()
        batch = rows(12)
        found = logits(whole, *batch).chunk(3)
        for place, each in enumerate(networks):
            own = logits(each, *(t[4 * place : 4 * place + 4] for t in batch))
            torch.testing.assert_close(found[place], own, rtol=1e-4, atol=1e-5)


def test_stack_of_one():
    one = network(7).eval()
    whole = stack([one], DropoutRng([7], CPU)).eval()
    batch = rows(4)
    torch.testing.assert_close(logits(whole, *batch), logits(one, *batch), rtol=1e-5, atol=1e-6)


def test_unstack():
    networks = [network(seed) for seed in range(3)]
    whole = stack(networks, DropoutRng(range(3), CPU))
    plain = network(99)
    unstack_(plain, whole, 2)
    wanted = networks[2].state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in plain.state_dict().items())


def test_stacked_adam_equals_paper_adam_per_seed():
    """Against `PaperAdam` with torch's own clipping, weight decay included."""
    networks = [network(seed).eval() for seed in range(3)]
    whole = stack(networks, DropoutRng(range(3), CPU)).eval()
    together = StackedAdam([[p] for p in whole.parameters()], weight_decay=0.1, clip=0.5)
    apart = [PaperAdam(parameter_groups(each, 0.1), weight_decay=0.1) for each in networks]
    ids, segments, attention_mask = rows(12)
    target = torch.tensor([0, 1, 2, 1] * 3)
    for step in range(4):
        rate = 0.01 * (step + 1)
        F.cross_entropy(
            logits(whole, ids, segments, attention_mask), target, reduction="sum"
        ).backward()
        together.step(torch.full((len(together.groups),), rate))
        whole.zero_grad()
        for place, (each, optimizer) in enumerate(zip(networks, apart, strict=True)):
            mine = slice(4 * place, 4 * place + 4)
            scores = logits(each, ids[mine], segments[mine], attention_mask[mine])
            F.cross_entropy(scores, target[mine], reduction="sum").backward()
            nn.utils.clip_grad_norm_(each.parameters(), 0.5)
            optimizer.step(rate)
            each.zero_grad()
    state = whole.state_dict()
    for place, each in enumerate(networks):
        for name, tensor in each.state_dict().items():
            # Steps are of 1e-2: where a gradient is near zero, its rounding is seen in Adam's ratio
            torch.testing.assert_close(state[name][place], tensor, rtol=1e-3, atol=2e-4)


def test_dropout_bytes_depend_only_on_the_seed():
    alone, together = DropoutRng([5], CPU), DropoutRng([3, 5, 8], CPU)
    for _ in range(3):  # step after step
        for noise in (alone, together):
            noise.used = 0
            noise.draw(1000)
        first, second = alone.take(600)[0], together.take(600)
        assert torch.equal(first, second[1])
        assert not torch.equal(second[0], second[1])
        assert torch.equal(alone.take(400)[0], together.take(400)[1])
    before = alone.bytes.clone()
    alone.restart()
    alone.draw(1000)
    assert not torch.equal(alone.bytes, before)  # the first draw again, not the fourth


def test_dropout_bytes_keep_their_address():
    """CUDA graphs keep the address."""
    noise = DropoutRng([0, 1], CPU)
    noise.draw(64)
    place = noise.bytes.data_ptr()
    noise.draw(16)
    assert noise.bytes.data_ptr() == place


def test_dropout_rate_and_mean():
    noise = DropoutRng([0, 1], CPU)
    noise.draw(200_000)
    drop = StackedDropout(0.1, noise).train()
    x = torch.ones(4, 100_000)
    y = drop(x)
    share = (y == 0).float().mean().item()
    assert abs(share - 26 / 256) < 0.002  # 0.1 in 256ths
    assert abs(y.mean().item() - 1) < 0.003
    assert torch.equal(y[y != 0].unique(), torch.tensor([256 / 230]))
    assert torch.equal(drop.eval()(x), x)


def test_dropout_rates_near_one():
    noise = DropoutRng([0], CPU)
    noise.draw(2000)
    found = StackedDropout(0.9999, noise).train()(torch.ones(1, 2000))
    assert found.isfinite().all()
    assert found.any()


def test_dropout_rates_are_kept():
    encoder = Encoder(replace(CONFIG, dropout=0.25, attention_dropout=0.5))
    head = make("classify", dropout=0.125).build_head(encoder)
    whole = stack([TaskModel(encoder, head)], DropoutRng([0], CPU))
    found = {n: m.threshold for n, m in whole.named_modules() if isinstance(m, StackedDropout)}
    rates = {n: (64, 128, 32)[("attention" in n) + 2 * n.startswith("head")] for n in found}
    assert found == rates
    assert len(found) == 1 + 2 * 2 + 1  # embeddings, two in each layer, head


def test_attention_dropout_keeps_the_mean():
    networks = [network(0)]
    noise = DropoutRng([0], CPU)
    whole = stack(networks, noise)
    attention = whole.encoder.layers[0].attention
    q, k, v = torch.randn(3, 1, 2, 8, 16, generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(8) < 6).view(1, 1, 1, 8)
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    total = torch.zeros_like(want)
    for _ in range(800):
        noise.used = 0
        noise.draw(2 * 8 * 8)
        total += attention.train()(q, k, v, mask)
    torch.testing.assert_close(total / 800, want, rtol=0.1, atol=0.08)
    torch.testing.assert_close(attention.eval()(q, k, v, mask), want)


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class WithParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(32))

    def forward(self, x):
        return self.gain * x


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.RMSNorm(32), r"this RMSNorm has a tensor of its own, 'weight'"),
        (Scaled(32, 32), "this Scaled is a subclass with a forward of its own"),
        (WithParameter(), r"this WithParameter has a tensor of its own, 'gain'"),
        (nn.Sequential(nn.GELU(), WithParameter()), r"'head\.extra\.1': this WithParameter"),
        (nn.BatchNorm1d(32, affine=False), "this BatchNorm1d has a tensor of its own"),
        (nn.Embedding(4, 32), r"this Embedding has a tensor of its own, 'weight'"),
        (nn.AlphaDropout(0.1), "this AlphaDropout is another kind of dropout"),
        (nn.Linear(32, 32, bias=False), "this Linear must have a weight and a bias"),
        (
            nn.LayerNorm(32, elementwise_affine=False),
            "this LayerNorm must have a weight and a bias",
        ),
    ],
)
def test_modules_without_a_stacked_form_are_refused(module, reason):
    """Otherwise all seeds would train the weights of the first one."""
    networks = [network(seed) for seed in range(2)]
    for each in networks:
        each.head.extra = module
    with pytest.raises(UserError, match=reason) as caught:
        stack(networks, DropoutRng(range(2), CPU))
    assert "'head.extra" in str(caught.value)


def test_a_changed_embedding_block_is_refused():
    networks = [network(seed) for seed in range(2)]
    for each in networks:
        each.encoder.embeddings.norm = nn.RMSNorm(16)
    with pytest.raises(UserError, match=r"'encoder\.embeddings\.norm': this RMSNorm"):
        stack(networks, DropoutRng(range(2), CPU))


@pytest.mark.parametrize(
    "path", ["", "encoder", "encoder.embeddings", "encoder.layers.0.attention"]
)
def test_a_parameter_of_a_container_is_refused(path):
    one = network(0)
    one.get_submodule(path).gain = nn.Parameter(torch.ones(1))
    with pytest.raises(UserError, match="has a tensor of its own, 'gain'"):
        stack([one], DropoutRng([0], CPU))


def test_finite_seeds():
    networks = [network(seed) for seed in range(3)]
    with torch.no_grad():
        networks[1].encoder.layers[1].output_norm.bias[3] = float("inf")
    assert finite_seeds(stack(networks, DropoutRng(range(3), CPU))) == [True, False, True]
