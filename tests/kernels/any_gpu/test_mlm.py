"""The generator's head, and its loss, gradient, sample and best guess."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

import triton
import triton.language as tl

from electra.kernels.any_gpu import mlm
from electra.kernels.any_gpu.mlm import MlmHead, MlmLoss, mlm_loss_, sample_categorical
from electra.objectives.random import Purpose, row_keys, uniform

NOTHING = float("-inf")
NAMES = ("x", "dense", "bias", "weight", "shift")
EPS = 1e-12


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch):
    """Several groups of words, the last one not full."""
    monkeypatch.setattr(mlm, "GROUP", 32)


def keys(rows: int, device, step: int = 0) -> torch.Tensor:
    """Keys of as many rows, each of which has one slot."""
    return row_keys(torch.tensor([11, step, 0], device=device), rows)


def guess(hidden, table, bias, absent, labels, is_masked, other, *rest):
    """`MlmLoss` with a temporary copy of the table."""
    copy, slots = table.detach().to(hidden.dtype), (labels, is_masked, other)
    tensors = (hidden, table, copy, bias, absent, *slots, keys(len(labels), labels.device))
    return MlmLoss.apply(*tensors, *rest, False)


def run(logits, labels, is_masked, other, temperature, disallow_correct, step: int = 0):
    """`mlm_loss_` with a key for each slot."""
    given = (logits, labels, is_masked, other, keys(len(labels), labels.device, step))
    return mlm_loss_(*given, temperature, disallow_correct)


def compare(hidden, table, bias, absent, labels, is_masked, near) -> None:
    """Losses, best guesses, and gradients where each row has its own weight."""
    leaves, before = (hidden, table, bias), bias.detach().clone()
    logits = F.linear(hidden, table, bias.masked_fill(absent, NOTHING))
    nll = F.cross_entropy(logits, labels, reduction="none")
    other = labels.roll(1)
    losses, samples, best, logs = guess(*leaves, absent, labels, is_masked, other, 1.0, False)
    assert torch.equal(bias, before)
    weights = torch.linspace(0.5, 2, len(labels), device=labels.device)
    found, wanted = (losses * weights).sum(), (torch.where(is_masked, nll, 0.0) * weights).sum()
    near(found, wanted)
    assert torch.equal(best, logits.argmax(-1))
    chances = logits.log_softmax(-1)
    near(logs[:, 0], chances.max(-1).values)
    near(logs[:, 1], chances.gather(-1, other[:, None]).squeeze(-1))
    assert not logs.requires_grad
    assert (samples >= 0).all()
    assert (samples < len(bias)).all()
    grads = (torch.autograd.grad(out, leaves) for out in (found, wanted))
    for name, a, b in zip(("hidden", "table", "bias"), *grads, strict=True):
        near(a, b, name)


@pytest.mark.parametrize("sharp", [0.1, 1.0, 20.0])
@pytest.mark.parametrize(("words", "width"), [(100, 48), (64, 96), (33, 16)])
def test_loss_and_gradients(words, width, sharp, device, normal, near):
    hidden, table, bias = normal(6, width), normal(words, width), normal(words)
    labels = torch.randint(0, words, (6,)).to(device)
    labels[:3] = F.linear(hidden[:3] * sharp, table, bias).argmax(-1)  # some are right
    hidden = (hidden * sharp).detach().requires_grad_()
    is_masked = torch.tensor([1, 0, 1, 1, 1, 0], dtype=torch.bool, device=device)
    compare(hidden, table, bias, torch.zeros_like(bias, dtype=torch.bool), labels, is_masked, near)


def absent_words(device) -> torch.Tensor:
    """The whole first group, some words, and the padding."""
    absent = torch.zeros(100, dtype=torch.bool)
    absent[:32], absent[40:50], absent[90:] = True, True, True
    return absent.to(device)


def test_words_that_do_not_exist(device, normal, near):
    hidden, table, bias, absent = normal(4, 48), normal(100, 48), normal(100), absent_words(device)
    labels = torch.tensor([32, 39, 70, 89], device=device)
    is_masked = torch.ones_like(labels, dtype=torch.bool)
    compare(hidden, table, bias, absent, labels, is_masked, near)
    losses, *_ = guess(hidden, table, bias, absent, labels, is_masked, labels, 1.0, False)
    losses.sum().backward()
    assert (bias.grad[absent] == 0).all()
    assert (table.grad[absent] == 0).all()
    assert (bias.grad[~absent] != 0).all()


def test_a_factor_that_repeats_one_number(device, normal, near):
    """As that of a sum: it is expanded, not stored."""
    leaves = normal(20, 48), normal(40, 48), normal(40)
    labels = torch.randint(0, 40, (20,)).to(device)
    rest = (
        torch.zeros(40, dtype=torch.bool, device=device),
        labels,
        labels >= 0,
        labels,
        1.0,
        False,
    )
    found = torch.autograd.grad(guess(*leaves, *rest)[0].sum() * 3, leaves)
    wanted = torch.autograd.grad(
        F.cross_entropy(F.linear(*leaves), labels, reduction="sum"), leaves
    )
    for name, a, b in zip(("hidden", "table", "bias"), found, wanted, strict=True):
        near(a, 3 * b, name)


def test_an_undrawn_slot_gives_nothing(device, normal, near):
    """Even where its truth has no probability, as that of padding may."""
    hidden, table, bias, absent = normal(3, 16), normal(100, 16), normal(100), absent_words(device)
    labels = torch.tensor([95, 60, 0], device=device)
    is_masked = torch.tensor([False, True, False], device=device)
    losses, *_ = guess(hidden, table, bias, absent, labels, is_masked, labels, 1.0, False)
    one = (labels[1:2], is_masked[1:2], labels[1:2])
    alone = guess(hidden[1:2], table, bias, absent, *one, 1.0, False)[0].sum()
    assert (losses[[0, 2]] == 0).all()
    loss = losses.sum()
    near(loss, alone)
    grad_hidden, of_table, grad_bias = torch.autograd.grad(loss, (hidden, table, bias))
    assert (grad_hidden[[0, 2]] == 0).all()
    assert grad_hidden[1].any()
    expected = torch.autograd.grad(alone, (table, bias))
    near(of_table, expected[0], "table")
    near(grad_bias, expected[1], "bias")


@pytest.mark.parametrize(
    ("temperature", "disallow_correct"), [(1.0, False), (2.0, True), (0.5, False)]
)
def test_samples_follow_the_distribution(
    temperature, disallow_correct, device, monkeypatch, follows
):
    """Chi-square, and no word that has no probability."""
    monkeypatch.setattr(mlm, "GROUP", 8)
    torch.manual_seed(5)
    count = 20_000 if device.type == "cuda" else 150
    words = 20
    logits = torch.linspace(-2, 2, words)[torch.randperm(words)]
    labels = int(logits.topk(2).indices[1])
    logits[[3, 8, 9, 19]] = NOTHING
    chances = logits / temperature
    if disallow_correct:
        chances[labels] = NOTHING
    expected = count * chances.softmax(0)
    rows = logits.repeat(count, 1).to(device)
    true = torch.full((count,), labels, device=device)
    is_masked = torch.rand(count, device=device) < 0.5  # the sample does not depend on it
    _, samples, best, _ = run(rows, true, is_masked, true, temperature, disallow_correct)
    found = samples.bincount(minlength=words).float().cpu()
    assert len(found) == words
    possible = expected > 0
    assert (found[~possible] == 0).all()
    assert (best == logits.argmax().item()).all()
    follows(found[possible], expected[possible])


def test_a_tiny_temperature_samples_the_best_guess(device, normal):
    logits = normal(20, 70).detach()
    wanted = logits.argmax(-1)
    nobody = torch.zeros(20, dtype=torch.bool, device=device)
    zeros = torch.zeros_like(wanted)
    _, samples, best, _ = run(logits, zeros, nobody, zeros, 1e-4, False)
    assert torch.equal(samples, wanted)
    assert torch.equal(best, wanted)
    assert (logits == 0).all()  # no gradient where nothing is masked


def test_slots_and_steps_have_their_own_samples(device):
    rows = 12
    labels, is_masked = torch.zeros(2, rows, dtype=torch.long, device=device)
    given = (labels, is_masked.bool(), labels, 1.0, False)
    first, second, again = (
        run(torch.zeros(rows, 90, device=device), *given, step)[1] for step in (0, 1, 0)
    )
    assert len(first.unique()) > 6
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


def test_samples_do_not_depend_on_the_micro_batch(device):
    """Four rows with three slots each, at once and two rows at a time."""
    logits = torch.randn(12, 90, device=device)
    labels = torch.zeros(12, dtype=torch.long, device=device)
    all_keys = keys(4, device)

    def sample(rows: slice, slots: slice) -> torch.Tensor:
        own = (labels[slots], labels[slots] == 0, labels[slots], all_keys[rows])
        return mlm_loss_(logits[slots].clone(), *own, 1.0, False)[1]

    whole = sample(slice(4), slice(12))
    parts = [sample(slice(0, 2), slice(0, 6)), sample(slice(2, 4), slice(6, 12))]
    assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_the_true_token_can_be_excluded_when_it_is_nearly_certain(temperature, device):
    """Even where the probabilities of all others are too small for a float."""
    logits = torch.zeros(10, 70, device=device)
    logits[:, 40] = 30.0
    labels = torch.full((10,), 40, device=device)
    _, samples, *_ = run(logits, labels, labels > 0, labels, temperature, True)
    assert (samples != 40).all()
    assert (samples < 70).all()
    assert len(samples.unique()) > 4


@triton.jit
def sample_kernel(given, numbers, out, COUNT: tl.constexpr):
    row = tl.program_id(0)
    weights = tl.load(given + row * COUNT + tl.arange(0, COUNT))
    tl.store(out + row, sample_categorical(weights, tl.load(numbers + row)))


def add_up_as_a_warp(x):
    """Sums of 32 numbers as a GPU's threads find them: each in another order."""
    x, step = x.copy(), 1
    while step < len(x):
        x[step:] = x[:-step] + x[step:]
        step *= 2
    return x


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-23])
def test_only_what_has_weight_is_sampled(number, device, monkeypatch):
    """A step of the cdf may lie below the one before it, by a rounding."""
    if device.type == "cpu":
        from triton.runtime import interpreter

        def crooked(self, given):
            return [self.to_tensor(add_up_as_a_warp(given.handle.data), dtype=given.dtype)]

        monkeypatch.setattr(interpreter.ScanOps, "cumsum", crooked)
    torch.manual_seed(0)
    rows = 20_000 if device.type == "cuda" else 100
    given = (3 * torch.randn(rows, 32)).exp()
    given[:, 28:], given[:, 5] = 0, 0
    cdfs = np.stack([add_up_as_a_warp(row) for row in given.numpy()])
    assert (np.diff(cdfs) < 0).any()
    out = torch.empty(rows, dtype=torch.int32, device=device)
    numbers = torch.full((rows,), number, device=device)
    sample_kernel[(rows,)](given.to(device), numbers, out, 32)
    assert (given.gather(1, out.long().cpu()[:, None]) > 0).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's NumPy
def test_nan_logits_give_a_valid_token(device):
    """The loss tells what went wrong, not a crash on an id that the table does not have."""
    logits = torch.full((4, 70), float("nan"), device=device)
    labels = torch.zeros(4, dtype=torch.long, device=device)
    losses, samples, *_ = run(logits, labels, labels == 0, labels, 1.0, False)
    assert losses.isnan().all()
    assert (samples < 70).all()


@pytest.mark.parametrize(
    ("key", "purpose", "number"),
    [
        (38334407, Purpose.SAMPLE_GROUP, 0.0),
        (38334406, Purpose.SAMPLE_TOKEN, 0.0),
        (74078252, Purpose.SAMPLE_GROUP, 1 - 2**-24),
        (74078253, Purpose.SAMPLE_TOKEN, 1 - 2**-24),
    ],
)
def test_extreme_random_numbers_choose_a_possible_token(key, purpose, number, device):
    """The first number of a slot chooses a group of tokens, the second a token of it."""
    row_key = torch.tensor([key], device=device)
    assert uniform(row_key, purpose, 1).item() == number
    logits = torch.zeros(1, 80, device=device)
    logits[:, :36], logits[:, 64:68] = NOTHING, NOTHING  # of each group the first words, or all
    labels = torch.tensor([50], device=device)
    given = (labels, labels > 0, labels, row_key)
    _, samples, *_ = mlm_loss_(logits.clone(), *given, 1.0, False)
    assert logits[0, samples].isfinite().all()


@pytest.fixture
def leaves(normal):
    """`leaves(9, 24, 48)`: of slots, hidden and width, in the order of `NAMES`."""
    return lambda slots, hidden, width: (
        *(normal(slots, hidden), normal(width, hidden), normal(width)),
        *(normal(width), normal(width)),
    )


def plain(x, dense, bias, weight, shift, eps=EPS):
    return F.layer_norm(F.gelu(F.linear(x, dense, bias)), weight.shape, weight, shift, eps)


@pytest.mark.parametrize("eps", [EPS, 0.5])
@pytest.mark.parametrize(
    ("slots", "hidden", "width"),
    [(1, 16, 48), (37, 24, 96), (70, 32, 128), (150, 64, 16), (5, 48, 300), (4, 8, 4)],
)
def test_mlm_head(slots, hidden, width, eps, leaves, normal, near):
    given = leaves(slots, hidden, width)
    found, wanted = MlmHead.apply(*given, eps), plain(*given, eps)
    near(found, wanted)
    grad = normal(slots, width).detach()
    grads = (torch.autograd.grad(out, given, grad) for out in (found, wanted))
    for name, a, b in zip(NAMES, *grads, strict=True):
        near(a, b, name)


def test_a_gradient_that_is_a_part_of_a_larger_tensor(leaves, normal, near):
    given, grad = leaves(9, 24, 48), normal(9, 60).detach()[:, 5:53]
    grads = (
        torch.autograd.grad(out, given, grad) for out in (MlmHead.apply(*given, EPS), plain(*given))
    )
    for name, a, b in zip(NAMES, *grads, strict=True):
        near(a, b, name)


def test_a_wide_row_takes_several_warps(leaves, normal, near):
    given = leaves(3, 16, 1100)
    grad = normal(3, 1100).detach()
    grads = (
        torch.autograd.grad(out, given, grad) for out in (MlmHead.apply(*given, EPS), plain(*given))
    )
    for name, a, b in zip(NAMES, *grads, strict=True):
        near(a, b, name)


def test_half_precision_keeps_the_parameters_gradients_in_fp32(
    device, leaves, normal, near, monkeypatch
):
    if device.type == "cpu":  # which has no products with another result

        def weight_grad(a, b):
            assert a.dtype == b.dtype == torch.bfloat16
            return a.float() @ b.float()

        monkeypatch.setattr(mlm, "weight_grad", weight_grad)
    x, *params = leaves(200, 24, 48)
    half = x.detach().bfloat16().requires_grad_()
    exact = half.detach().float().requires_grad_()
    found, wanted = MlmHead.apply(half, *params, EPS), plain(exact, *params)
    assert found.dtype == torch.bfloat16
    near(found.float(), wanted, share=0.02)
    grad = normal(200, 48).detach().bfloat16()
    grads = torch.autograd.grad(found, (half, *params), grad)
    expected = torch.autograd.grad(wanted, (exact, *params), grad.float())
    assert [g.dtype for g in grads] == [torch.bfloat16, *[torch.float32] * 4]
    for name, a, b in zip(NAMES, grads, expected, strict=True):
        assert (a - b).norm() < 0.01 * b.norm(), name
    assert not torch.equal(grads[1], grads[1].bfloat16().float())  # it never was bf16
    near(grads[4], grad.float().sum(0), "shift", share=1e-6)
