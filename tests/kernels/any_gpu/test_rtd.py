"""The discriminator's head; the detection loss, its gradient, and the sums of a step."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu.rtd import BLOCK, LOSS_INDEX, RtdHead, RtdLoss, rtd_loss_kernel
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.mlm_output import MlmOutput
from electra.objectives.rtd import METRIC_SUMS, ReplacedTokenDetection

SHAPES = [(1, 1, 1), (3, 24, 4), (5, 128, 19), (2, 200, 200), (2, 512, 79), (2, 512, 300)]


@pytest.fixture
def given(device):
    """Made for a shape: scores, three maps of the tokens, and what is known of the slots."""

    def made(rows: int, length: int, slots: int):
        torch.manual_seed(0)
        scores = 3 * torch.randn(rows, length)
        replaced, loss_mask, attention_mask = (
            torch.rand(rows, length) < p for p in (0.3, 0.6, 0.8)
        )
        samples, labels = torch.randint(0, 3, (2, rows, slots))
        is_masked = torch.rand(rows, slots) < 0.7
        right = is_masked & (torch.rand(rows, slots) < 0.4)
        loss = torch.tensor(123.25)
        tensors = (
            scores,
            replaced,
            loss_mask,
            attention_mask,
            loss,
            right,
            samples,
            labels,
            is_masked,
        )
        return [t.to(device) for t in tensors]

    return made


def plain(scores, replaced, loss_mask, attention_mask, loss, right, samples, labels, is_masked):
    nothing = torch.empty(0)
    batch, masked = (
        Batch(nothing, nothing, attention_mask, attention_mask, nothing),
        Masked(nothing, nothing, is_masked, labels),
    )
    guesses = MlmOutput(loss, right, samples)
    return ReplacedTokenDetection.detection_loss(
        None, scores, replaced, loss_mask, batch, masked, guesses
    )


def compare(given, near) -> torch.Tensor:
    """Everything beside the plain code; returns the gradient of each score."""
    scores = given[0].requires_grad_()
    wanted_loss, wanted = plain(*given)
    loss, sums = RtdLoss.apply(*given)
    assert sums.dtype == torch.float32
    assert not sums.requires_grad
    near(loss, wanted_loss, "loss")
    counts = [n for n in range(len(METRIC_SUMS)) if n != LOSS_INDEX]
    assert torch.equal(sums[counts], wanted[counts])
    near(sums[LOSS_INDEX], wanted[LOSS_INDEX], "the loss among the sums")
    (wanted_grad,) = torch.autograd.grad(wanted_loss * 2.5, scores)
    (grad,) = torch.autograd.grad(loss * 2.5, scores)
    near(grad, wanted_grad, "scores", share=1e-6)
    return grad


@pytest.mark.parametrize(("rows", "length", "slots"), SHAPES)
def test_detect(rows, length, slots, given, near):
    compare(given(rows, length, slots), near)


def test_the_sums_are_those_that_the_objective_names(given):
    """Each of them another number, worked out by itself."""
    made = given(6, 128, 19)
    scores, replaced, loss_mask, attention_mask, loss, right, samples, labels, is_masked = made
    flagged = (scores > 0) & loss_mask
    wanted = {
        "masked": is_masked.sum(),
        "mlm_loss": loss,
        "generator_correct": right.sum(),
        "sampled_correct": (is_masked & (samples == labels)).sum(),
        "tokens": attention_mask.sum(),
        "replaced": replaced.sum(),
        "predicted_replaced": flagged.sum(),
        "true_positives": (flagged & replaced).sum(),
        "loss_tokens": loss_mask.sum(),
    }
    assert len({float(x) for x in wanted.values()}) == len(wanted)
    found_loss, sums = RtdLoss.apply(*made)
    found = dict(zip(METRIC_SUMS, sums.tolist(), strict=True))
    assert found.pop("detection_loss") == float(found_loss)
    assert found == {name: float(x) for name, x in wanted.items()}


def test_scores_at_the_ends_and_in_the_middle(given, near, device):
    """Nothing overflows, a verdict of 0 is no flag, and a sure one that is wrong costs its size."""
    made = given(1, 8, 1)
    made[0] = torch.tensor([[100.0, 100, -100, -100, 0, 0, 40, -40]], device=device)
    made[1] = torch.tensor([[True, False] * 4], device=device)
    made[2] = torch.ones_like(made[1])
    grad = compare(made, near)
    expected = torch.tensor([0, 1, -1, 0, -0.5, 0.5, 0, 0], device=device)
    torch.testing.assert_close(grad[0], 2.5 * expected, atol=1e-6, rtol=0)
    loss, sums = RtdLoss.apply(*made)
    assert loss.item() == pytest.approx(200 + 2 * 0.693147, rel=1e-6)
    assert sums[[7, 8]].tolist() == [3, 2]


def test_none_is_judged(given, near):
    """What stands there costs nothing and learns nothing, even where it is no number."""
    made = given(3, 24, 4)
    made[2] = torch.zeros_like(made[2])
    assert not compare(made, near).any()
    made[0] = torch.full_like(made[0], float("nan")).requires_grad_()
    loss, _ = RtdLoss.apply(*made)
    assert loss == 0
    assert not torch.autograd.grad(loss, made[0])[0].any()


def test_what_is_no_number_shows(given):
    made = given(3, 24, 4)
    made[0][1, 5], made[2][1, 5] = float("nan"), True
    loss, sums = RtdLoss.apply(*made)
    assert loss.isnan()
    assert sums.isnan().nonzero().flatten().tolist() == [LOSS_INDEX]


def test_no_slot_is_drawn(given, near):
    made = given(3, 24, 4)
    made[5] = made[8] = torch.zeros_like(made[8])
    compare(made, near)
    assert RtdLoss.apply(*made)[1][:4].tolist() == [0, 123.25, 0, 0]


def test_gradients_are_written_to_their_end_and_not_beyond(given, device):
    made = given(3, 24, 4)
    dlogits = torch.full((2 * BLOCK,), 7.0, device=device)
    sums = torch.empty(len(METRIC_SUMS), 2, device=device)
    rtd_loss_kernel[(2,)](*made, dlogits, sums, 3 * 24, 3 * 4, BLOCK, num_warps=1)
    assert (dlogits[: 3 * 24].abs() <= 1).all()
    assert (dlogits[3 * 24 :] == 7).all()
    assert not sums[:, 1].any()


def test_tensors_that_are_cut_from_wider_ones(given, near):
    made = given(4, 30, 20)
    tokens, slots = [t[:, 3:20] for t in made[:4]], [t[:, :7] for t in made[5:]]
    tokens[0] = tokens[0].detach()
    compare([*tokens, made[4], *slots], near)


HEAD = ("x", "dense", "bias", "weight", "shift")


@pytest.mark.parametrize(("rows", "width"), [(1, 48), (37, 96), (150, 64)])
def test_rtd_head(rows, width, normal, near):
    leaves = (
        *(normal(rows, width), normal(width, width), normal(width)),
        *(normal(1, width), normal(1)),
    )
    x, dense, bias, weight, shift = leaves
    wanted = F.linear(F.gelu(F.linear(x, dense, bias)), weight, shift).squeeze(-1)
    found = RtdHead.apply(*leaves)
    near(found, wanted)
    grad = normal(rows).detach()
    grads = (torch.autograd.grad(out, leaves, grad) for out in (found, wanted))
    for name, a, b in zip(HEAD, *grads, strict=True):
        near(a, b, name)


def test_rtd_head_with_an_expanded_gradient(normal, near):
    leaves = normal(9, 48), normal(48, 48), normal(48), normal(1, 48), normal(1)
    found = torch.autograd.grad(RtdHead.apply(*leaves).sum(), leaves)  # expanded, not stored
    wanted = torch.autograd.grad(
        (RtdHead.apply(*leaves) * torch.ones_like(leaves[0][:, 0])).sum(), leaves
    )
    for name, a, b in zip(HEAD, found, wanted, strict=True):
        near(a, b, name)
