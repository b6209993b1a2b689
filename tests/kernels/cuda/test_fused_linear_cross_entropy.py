"""The MLM loss without logits in memory: its schedule, what is made of the statistics of threads,
and on a Hopper GPU the same as plain torch."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu.mlm import MlmLoss, scale_grads
from electra.kernels.cuda.fused_linear_cross_entropy import (
    TileSchedule,
    cross_entropy_dlogits,
    cross_entropy_forward,
    finalize,
    pad_bias,
)
from electra.objectives.random import row_keys

NOTHING = float("-inf")
LOG2E = 1.4426950408889634
BLOCK_M, BLOCK_N = 192, 128


def shares(schedule: TileSchedule, tall: int) -> list[range]:
    """Of some slots: the tiles of words that each program has, which has any."""
    own = []
    for program in range(schedule.programs):
        first, last = (n * schedule.units // schedule.programs for n in (program, program + 1))
        tiles = range(max(first, tall * schedule.across), min(last, (tall + 1) * schedule.across))
        if tiles:
            own.append(
                range(
                    tiles.start - tall * schedule.across,
                    tiles.stop - tall * schedule.across,
                )
            )
    return own


def first_of(schedule: TileSchedule, tall: int) -> int:
    """The program that is first, as the kernels say."""
    return ((tall * schedule.across + 1) * schedule.programs - 1) // schedule.units


@pytest.mark.parametrize("processors", [1, 2, 7, 132])
def test_all_words_are_dealt_out_once(processors):
    for talls in (1, 2, 3, 5, 14, 107, 131, 132, 133, 300):
        for across in (1, 2, 8, 239):
            units = talls * across
            schedule = TileSchedule(min(processors, units), across, units)
            most = 0
            for tall in range(talls):
                own = shares(schedule, tall)
                assert [n for tiles in own for n in tiles] == list(range(across))
                first = first_of(schedule, tall)
                assert first * units // schedule.programs < (tall * across) + 1
                assert (first + 1) * units // schedule.programs > tall * across
                last = ((tall + 1) * across * schedule.programs - 1) // units
                assert last - first + 1 == len(own)
                most = max(most, len(own))
            assert most <= schedule.parts


def test_all_to_one():
    schedule = TileSchedule.single(1000)
    assert all(first_of(schedule, tall) == 0 for tall in range(6))
    assert all(len(shares(schedule, tall)) == 1 for tall in range(6))


def thread_stats(logits: torch.Tensor, schedule: TileSchedule) -> torch.Tensor:
    """What threads leave, for logits in units of log 2: (slots, parts, lanes, 4).

    The race is the sum of exp scores divided by an exponentially distributed number.
    """
    stats = torch.full((len(logits), schedule.parts, 4, 4), torch.nan, device=logits.device)
    logits = F.pad(logits, (0, schedule.across * BLOCK_N - logits.shape[1]), value=NOTHING)
    tiles = logits.view(-1, schedule.across, 16, 4, 2).transpose(2, 3).flatten(3)
    for tall in range(schedule.units // schedule.across):
        rows = slice(tall * BLOCK_M, (tall + 1) * BLOCK_M)
        for part, own in enumerate(shares(schedule, tall)):
            z = tiles[rows, own.start : own.stop].transpose(1, 2)  # (slots, lanes, tiles, words)
            top, place = z.amax(-1).max(-1)
            top = top.clamp(min=-1e30)
            sums = (z - top[..., None, None]).exp2().sum(-1)
            race, chosen = (sums / torch.empty_like(sums).exponential_()).max(-1)
            tiles_of = ((place + own.start) << 16 | (chosen + own.start)).int()
            four = (top, sums.sum(-1), race, tiles_of.view(torch.float32))
            stats[rows, part] = torch.stack(four, -1)
    return stats


def keys(rows: int, device) -> torch.Tensor:
    return row_keys(torch.tensor([11, 0, 0], device=device), rows)


def gone(words: int, device) -> torch.Tensor:
    """Some words, and the last ones."""
    absent = torch.zeros(words, dtype=torch.bool, device=device)
    absent[5:9], absent[-3:] = True, True
    return absent


def offset_of(bias: torch.Tensor, absent: torch.Tensor) -> torch.Tensor:
    return bias.float().masked_fill(absent, NOTHING)


def test_the_bias_of_whole_tiles(device, normal):
    bias, absent = normal(300).detach(), gone(300, device)
    found = pad_bias(bias, absent)
    assert len(found) == 384
    assert (found[300:] == NOTHING).all()
    torch.testing.assert_close(found[:300], offset_of(bias, absent) * LOG2E)


@pytest.mark.parametrize("programs", [1, 5])
def test_what_is_made_of_what_threads_saw(programs, device, normal, near):
    """Two tiles of slots, the second not full, and three of words."""
    slots, words = 200, 300
    hidden, table, bias = (t.detach() for t in (normal(slots, 16), normal(words, 16), normal(300)))
    absent = gone(words, device)
    labels = torch.randint(10, 290, (slots,)).to(device)
    is_masked, other = labels % 3 > 0, labels.roll(1)
    schedule = TileSchedule(programs, 3, 6)
    logits = F.linear(hidden, table, offset_of(bias, absent))
    losses, samples, best, logs, level = finalize(
        thread_stats(logits * LOG2E, schedule), schedule, hidden, table, pad_bias(bias, absent),
        labels,
        is_masked, other, keys(slots // 10, device),
    )  # fmt: skip
    chances = logits.log_softmax(-1)
    nll = F.nll_loss(chances, labels, reduction="none")
    near(losses, torch.where(is_masked, nll, 0.0))
    assert torch.equal(best, logits.argmax(-1))
    near(logs[:, 0], chances.max(-1).values)
    near(logs[:, 1], chances.gather(-1, other[:, None]).squeeze(-1))
    near(level[is_masked], logits.logsumexp(-1)[is_masked] * LOG2E)
    assert (level[~is_masked] == float("inf")).all()
    assert chances.gather(-1, samples[:, None]).isfinite().all()


@pytest.fixture
def drawn_by(follows):
    """`drawn_by(samples, logits)`: of slots with the same logits; words that are hardly expected
    count as one."""

    def check(samples: torch.Tensor, logits: torch.Tensor) -> None:
        expected = len(samples) * logits.softmax(0).cpu()
        found = samples.bincount(minlength=len(logits)).float().cpu()
        assert len(found) == len(logits)
        assert (found[expected == 0] == 0).all()
        rare = expected < 5
        expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
        found = torch.cat((found[~rare], found[rare].sum()[None]))
        follows(found, expected.clamp(min=1e-9))

    return check


def test_samples_follow_the_distribution_of_what_threads_saw(device, drawn_by):
    torch.manual_seed(5)
    slots = 20_000 if device.type == "cuda" else 200
    talls = -(-slots // BLOCK_M)
    schedule = TileSchedule(2 * talls, 3, talls * 3)
    bias, absent = torch.linspace(-9, 2, 300)[torch.randperm(300)].to(device), gone(300, device)
    hidden, table = torch.zeros(slots, 16, device=device), torch.zeros(300, 16, device=device)
    labels = torch.full((slots,), 50, device=device)
    logits = offset_of(bias, absent)
    stats = thread_stats((logits * LOG2E).expand(slots, -1), schedule)
    given = (hidden, table, pad_bias(bias, absent), labels, labels > 0, labels, keys(slots, device))
    _, samples, best, *_ = finalize(stats, schedule, *given)
    drawn_by(samples, logits)
    assert (best == logits.argmax()).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's NumPy
def test_nan_logits_give_a_valid_token(device):
    """As in `test_mlm`; threads that saw no number leave what they began with."""
    stats = torch.tensor([-1e30, torch.nan, 0.0, 2e-45], device=device).repeat(4, 2, 4, 1)
    hidden = torch.full((4, 16), torch.nan, device=device)
    table, offset = torch.zeros(300, 16, device=device), torch.zeros(384, device=device)
    labels = torch.zeros(4, dtype=torch.long, device=device)
    given = (hidden, table, offset, labels, labels == 0, labels, keys(4, device))
    losses, samples, best, *_ = finalize(stats, TileSchedule(1, 3, 3), *given)
    assert losses.isnan().all()
    assert ((samples < 300) & (best < 300)).all()


def test_parts_are_added_up(device, normal, near):
    """Only those that a program left."""
    schedule, slots = TileSchedule(5, 3, 6), 220
    parts = torch.full((schedule.parts, slots, 16), torch.nan, device=device)
    wanted = torch.zeros(slots, 16, device=device)
    for tall in range(2):
        rows = slice(tall * BLOCK_M, min(slots, (tall + 1) * BLOCK_M))
        count = len(shares(schedule, tall))
        parts[:count, rows] = normal(count, rows.stop - rows.start, 16).detach()
        wanted[rows] = parts[:count, rows].sum(0)
    hidden, factor = normal(slots, 16).detach(), normal(slots).detach()
    grad_hidden, wider = scale_grads(parts, schedule, hidden, factor)
    near(grad_hidden, wanted * factor[:, None])
    near(wider, torch.cat((hidden, torch.ones_like(hidden[:, :8])), 1) * factor[:, None])


@pytest.fixture
def given(hopper):
    """`given(200, 1000)`: hidden and table in bf16, bias, absent, labels, is_masked, other."""
    torch.manual_seed(3)

    def draw(slots: int, words: int) -> list[torch.Tensor]:
        hidden = torch.randn(slots, 128, device=hopper).bfloat16()
        table = (torch.randn(words, 128, device=hopper) * 0.2).bfloat16()
        bias, absent = torch.randn(words, device=hopper), gone(words, hopper)
        labels = torch.randint(10, words - 10, (slots,), device=hopper)
        is_masked = torch.rand(slots, device=hopper) < 0.8
        is_masked[0] = True
        return [hidden, table, bias, absent, labels, is_masked, labels.roll(1)]

    return draw


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found.float() - wanted).norm() / wanted.norm()).item()


SIZES = [(slots, words) for slots in (1, 200, 2560) for words in (30522, 1000, 130)]


@pytest.mark.gpu
@pytest.mark.parametrize(("slots", "words"), SIZES)
def test_the_same_as_torch(slots, words, given):
    hidden, table, bias, absent, labels, is_masked, other = given(slots, words)
    leaves = [t.float().requires_grad_() for t in (hidden, table, bias)]
    logits = F.linear(leaves[0], leaves[1], offset_of(leaves[2], absent))
    chances = logits.log_softmax(-1)
    nll = torch.where(is_masked, F.nll_loss(chances, labels, reduction="none"), 0.0)
    weights = torch.linspace(0.5, 2, slots, device=hidden.device)
    wanted = torch.autograd.grad((nll * weights).sum(), leaves)
    own = [hidden.requires_grad_(), table.float().requires_grad_(), bias.requires_grad_()]
    rest = (absent, labels, is_masked, other, keys(slots, hidden.device), 1.0, False, True)
    losses, samples, best, logs = MlmLoss.apply(own[0], own[1], table, own[2], *rest)
    torch.testing.assert_close(losses, nll, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(logs[:, 0], chances.max(-1).values, rtol=1e-4, atol=1e-3)
    at_other = chances.gather(-1, other[:, None]).squeeze(-1)
    torch.testing.assert_close(logs[:, 1], at_other, rtol=1e-4, atol=1e-3)
    at_best = chances.gather(-1, best[:, None]).squeeze(-1)
    torch.testing.assert_close(at_best, chances.max(-1).values, rtol=1e-4, atol=1e-3)
    assert chances.gather(-1, samples[:, None]).isfinite().all()
    found = torch.autograd.grad((losses * weights).sum(), own)
    for name, ours, torchs in zip(("hidden", "table", "bias"), found, wanted, strict=True):
        assert ours.shape == torchs.shape, name
        assert off(ours, torchs) < 1e-2, name
    assert (found[0][~is_masked] == 0).all()
    assert (found[2][absent] == 0).all()


@pytest.mark.gpu
def test_dlogits_end_where_they_should(given):
    """Nothing is written beyond the last slot, and padding has no gradient."""
    hidden, table, bias, absent, labels, is_masked, other = given(200, 1001)
    given_keys = keys(20, hidden.device)
    _, kept = cross_entropy_forward(
        hidden, table, bias, absent, labels, is_masked, other, given_keys
    )
    dlogits, _, _ = cross_entropy_dlogits(hidden, table, *kept)
    logits = F.linear(hidden.float(), table.float(), offset_of(bias, absent))
    wanted = logits.softmax(-1) - F.one_hot(labels, 1001)
    assert off(dlogits[:, :1001], wanted * is_masked[:, None]) < 5e-3
    assert (dlogits[:, 1001:] == 0).all()


@pytest.mark.gpu
def test_samples_follow_the_distribution(given, drawn_by):
    hidden, table, bias, absent, *_ = given(1, 1000)
    hidden = hidden.expand(20_000, -1).contiguous()
    labels = torch.full((20_000,), 50, device=hidden.device)
    (_, samples, *_), _ = cross_entropy_forward(
        hidden, table, bias, absent, labels, labels > 0, labels, keys(1000, hidden.device)
    )
    drawn_by(samples, F.linear(hidden[0].float(), table.float(), offset_of(bias, absent)))


@pytest.mark.gpu
def test_the_same_seed_gives_the_same(given):
    """Bit for bit: no two programs add to one number."""
    both = []
    for _ in range(2):
        torch.manual_seed(7)
        hidden, table, bias, *rest = given(2560, 3000)
        own = [hidden.requires_grad_(), table.float().requires_grad_(), bias.requires_grad_()]
        found = MlmLoss.apply(
            own[0], own[1], table, own[2], *rest, keys(256, hidden.device), 1.0, False, True
        )
        both.append((*found, *torch.autograd.grad(found[0].sum(), own)))
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))


@pytest.mark.gpu
def test_samples_do_not_depend_on_the_micro_batch(given):
    """256 rows with ten slots, at once and 64 rows at a time: other tiles, and other splits."""
    hidden, table, bias, absent, *slots = given(2560, 30522)
    all_keys = keys(256, hidden.device)

    def sample(first: int, end: int) -> torch.Tensor:
        own = [t[10 * first : 10 * end].contiguous() for t in (hidden, *slots)]
        outputs, _ = cross_entropy_forward(
            own[0], table, bias, absent, *own[1:], all_keys[first:end].contiguous()
        )
        return outputs[1]

    parts = torch.cat([sample(first, first + 64) for first in range(0, 256, 64)])
    assert torch.equal(sample(0, 256), parts)
    assert len(parts.unique()) > 100
