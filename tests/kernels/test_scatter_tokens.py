"""Tokens put into text: the plain code's result, to the bit."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu.masking import (
    SCATTER_SLOTS,
    SCATTER_TOKENS,
    scatter_tokens,
    scatter_tokens_kernel,
)
from electra.objectives import corrupt

WORDS = 50
SHAPES = [(1, 1, 1), (3, 24, 4), (5, 128, 19), (2, 200, 200), (2, 512, 79), (1, 530, 33)]


def compare(ids, positions, tokens, where) -> torch.Tensor:
    wanted = corrupt.scatter_tokens(ids, positions, tokens, where)
    found, changed = scatter_tokens(ids, positions, tokens, where)
    assert found.dtype == torch.long
    assert torch.equal(found, wanted)
    assert changed.dtype == torch.bool
    assert torch.equal(changed, wanted != ids)
    return found


@pytest.fixture
def is_masked(device):
    """Made for a shape: text, positions that come more than once, tokens, and which are put."""

    def made(rows: int, length: int, slots: int):
        torch.manual_seed(0)
        ids = torch.randint(0, WORDS, (rows, length))
        positions = torch.randint(0, length, (rows, slots))
        tokens = torch.randint(0, WORDS, (rows, slots))
        tokens = torch.where(torch.rand(rows, slots) < 0.3, ids.gather(1, positions), tokens)
        where = torch.rand(rows, slots) < 0.7
        return tuple(t.to(device) for t in (ids, positions, tokens, where))

    return made


@pytest.mark.parametrize(("rows", "length", "slots"), SHAPES)
def test_put(rows, length, slots, is_masked):
    compare(*is_masked(rows, length, slots))


@pytest.mark.parametrize(("rows", "length", "slots"), SHAPES)
def test_every_position_once_and_the_last_of_a_row(rows, length, slots, is_masked, device):
    """The last slot has the last place: that of a row, not of the next one."""
    ids, _, tokens, where = is_masked(rows, length, slots)
    last = torch.arange(length - slots, length, device=device).expand(rows, -1)
    found = compare(ids, last, tokens, torch.ones_like(where))
    assert torch.equal(found[:, length - slots :], tokens)


def test_nothing_is_put(is_masked):
    ids, positions, tokens, where = is_masked(3, 24, 4)
    assert torch.equal(compare(ids, positions, tokens, torch.zeros_like(where)), ids)


def test_a_position_drawn_twice_takes_the_larger_id(device):
    """Also where the slots lie in different tiles; what is not drawn does not count."""
    ids = torch.full((1, 40), 7, device=device)
    positions, tokens = torch.full((1, 40), 3, device=device), torch.zeros_like(ids)
    where = torch.zeros_like(ids, dtype=torch.bool)
    tokens[0, [0, 35, 39]] = torch.tensor([9, 8, 30], device=device)
    where[0, [0, 35]] = True
    assert compare(ids, positions, tokens, where)[0].tolist() == [7] * 3 + [9] + [7] * 36
    tokens[0, [0, 35]] = torch.tensor([0, 2], device=device)  # the first id of all is one too
    where[0, 35] = False
    assert compare(ids, positions, tokens, where)[0, 3] == 0


@pytest.mark.parametrize("length", [24, 64, 130])
def test_a_row_is_written_to_its_end_and_not_beyond(length, is_masked):
    """The next row is another program's, at the same time."""
    given = is_masked(2, length, 4)
    out, changed = torch.full_like(given[0], -5), torch.full_like(given[0], True, dtype=torch.bool)
    grid = (1, -(-length // SCATTER_TOKENS))
    scatter_tokens_kernel[grid](
        *given, out, changed, length, 4, SCATTER_TOKENS, SCATTER_SLOTS, num_warps=1
    )
    assert (out[0] >= 0).all()
    assert not changed[0].all()
    assert (out[1] == -5).all()
    assert changed[1].all()


def test_tensors_that_are_cut_from_wider_ones(is_masked):
    ids, positions, tokens, where = is_masked(4, 12, 12)
    positions = positions.clamp_max(9)
    compare(ids[:, :-2], positions[:, 1:6], tokens[:, 1:6], where[:, 2:7])
