"""Masking in one kernel, and tokens put into text: as in plain torch, bit for bit."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu.masking import (
    MAX_LENGTH,
    SCATTER_SLOTS,
    SCATTER_TOKENS,
    mask_rows,
    scatter_tokens,
    scatter_tokens_kernel,
)
from electra.objectives import corrupt
from electra.objectives.batch import unpack
from electra.objectives.corrupt import mask_tokens, max_masked
from electra.objectives.kinds import KINDS
from electra.objectives.objective import Objective
from electra.objectives.random import Purpose, row_keys, uniform
from electra.train.accelerate import use_fused_kernels_

WORDS = 60
MASK = 4
NAMES = (
    *(
        "ids",
        "segments",
        "attention_mask",
        "doc_ids",
        "row_keys",
        "inputs",
        "positions",
        "is_masked",
        "labels",
    ),
    "totals",
)
SHAPES = [(1, 1, 1), (3, 24, 4), (5, 128, 19), (2, 200, 200), (2, 512, 79), (1, 530, 33)]


@pytest.fixture
def stored(device):
    """`stored(3, 24)`: a row without text, one of special tokens, one full, others as they come."""

    def written(rows: int, length: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(rows * length)
        made = torch.randint(0, WORDS, (rows, length + 2), generator=draw, dtype=torch.int32)
        ends = torch.randint(1, length + 1, (rows, 2), generator=draw, dtype=torch.int32)
        made[:, -2:] = ends.sort(1).values
        made[0, -2:] = torch.tensor([length // 2, length])
        if rows > 2:
            made[1, -2:] = 0
            made[2, :-2] %= 4  # [PAD], [CLS], [SEP] and one word, which is there less than drawn
            made[2, :-2][made[2, :-2] == 1] = 2
            made[2, length // 2] = 1
        return made.to(device)

    return written


@pytest.fixture
def table(device):
    """False for the special tokens."""
    maskable = torch.ones(WORDS, dtype=torch.bool, device=device)
    maskable[[0, 2, 3, MASK]] = False
    return maskable


def plain(rows, table, seed=0, *, rate, top_rate, shown, rounding):
    """What an objective does."""
    batch = unpack(rows, row_keys=keys_of(rows, seed))
    how = {"rate": rate, "top_rate": top_rate, "mask_token_prob": shown, "rounding": rounding}
    masked = mask_tokens(batch.ids, batch.attention_mask, table, MASK, batch.row_keys, **how)
    totals = torch.stack([masked.is_masked.sum(), batch.attention_mask.sum()]).clamp_min(1)
    return *batch, *masked, totals


def fused(rows, table, seed=0, *, rate, top_rate, shown, rounding):
    """The same with the kernel."""
    length = rows.shape[1] - 2
    found = mask_rows(
        *(rows, table, counter_of(rows, seed)),
        slots=max_masked(length, max(rate, top_rate), rounding),
        mask_id=MASK, rate=rate, mask_token_prob=shown, most=max_masked(length, rate, rounding),
        ceil=rounding == "ceil",
    )  # fmt: skip
    ids, segments, attention_mask, keys, *masked, counts = found
    return ids, segments, attention_mask, attention_mask, keys, *masked, counts.sum(1).clamp_min(1)


def same(found, wanted) -> None:
    for name, a, b in zip(NAMES, found, wanted, strict=True):
        assert a.dtype == b.dtype, name
        assert a.is_contiguous(), name
        assert torch.equal(a, b), name


def compare(rows, table, seed=0, **how) -> None:
    how = {"rate": 0.15, "top_rate": 0.0, "shown": 0.85, "rounding": "round"} | how
    seed = without_ties(rows, seed)
    same(fused(rows, table, seed, **how), plain(rows, table, seed, **how))


def counter_of(rows, seed: int) -> torch.Tensor:
    """Seed, step and first row."""
    return torch.tensor([seed, 3, 5], device=rows.device)


def keys_of(rows, seed: int) -> torch.Tensor:
    return row_keys(counter_of(rows, seed), len(rows))


def without_ties(rows, seed: int) -> int:
    """The next seed whose lottery has no number twice: topk may take any of the two."""
    while True:
        numbers = uniform(keys_of(rows, seed), Purpose.MASK_POSITION, rows.shape[1] - 2)
        numbers = (numbers + 1).sort(1).values
        if (numbers.diff(dim=1) > 0).all():
            return seed
        seed += 1


@pytest.mark.parametrize("rounding", ["round", "ceil"])
@pytest.mark.parametrize("rate", [0.05, 0.15, 0.25, 0.5, 1.0])
@pytest.mark.parametrize(
    ("rows", "length"), [(1, 1), (1, 30), (3, 24), (5, 128), (2, 200), (2, 512)]
)
def test_shapes_and_rates(rows, length, rate, rounding, stored, table):
    compare(stored(rows, length), table, rate=rate, rounding=rounding)


@pytest.mark.parametrize("rounding", ["round", "ceil"])
@pytest.mark.parametrize("rate", [0.05, 0.15, 0.25, 0.35])
def test_every_number_of_tokens(rate, rounding, table, device):
    """Each share comes near a half somewhere, and a product of another precision on its wrong
    side."""
    length = 140
    rows = torch.full((length + 1, length + 2), 7, dtype=torch.int32, device=device)
    rows[:, -1] = torch.arange(length + 1)
    exact = [n * float(torch.tensor(rate)) for n in range(length + 1)]
    halves = [n for n, x in enumerate(exact) if round(x) != round(float(torch.tensor(x)))]
    assert halves or rate == 0.25
    compare(rows, table, rate=rate, rounding=rounding)


@pytest.mark.parametrize("shown", [0.0, 0.7, 0.85, 1.0])
def test_what_is_shown(shown, stored, table):
    compare(stored(5, 128), table, rate=0.5, shown=shown)


def test_a_number_equal_to_the_probability_keeps_its_token(table, device):
    rows = torch.full((1, 22), 7, dtype=torch.int32, device=device)
    rows[:, -1] = 20
    seed = without_ties(rows, 0)
    for number in uniform(keys_of(rows, seed), Purpose.MASK_TOKEN, 10)[0].tolist():
        compare(rows, table, seed, rate=0.5, shown=number)


def test_slots_for_a_higher_rate(stored, table):
    compare(stored(5, 128), table, rate=0.1, top_rate=0.4)


def test_equal_sort_keys_go_from_left_to_right(table, device):
    """Added to 1, a candidate's number loses its last bit, so that some of them are equal."""
    length = 512
    rows = torch.full((64, length + 2), 7, dtype=torch.int32, device=device)
    rows[:, -1] = length
    numbers = uniform(keys_of(rows, 0), Purpose.MASK_POSITION, length) + 1
    found = mask_rows(
        *(rows, table, counter_of(rows, 0)),
        slots=length, mask_id=MASK, rate=1.0, mask_token_prob=1.0, most=length, ceil=False,
    )  # fmt: skip
    positions = found[5]
    ordered = numbers.gather(1, positions)
    ties = ordered[:, :-1] == ordered[:, 1:]
    assert ties.any()
    assert (ordered.diff(dim=1) <= 0).all()
    assert (positions[:, :-1] < positions[:, 1:])[ties].all()


def test_rows_that_are_cut_from_wider_ones(stored, table):
    rows = stored(3, 28)
    rows[:, -6:-4] = rows[:, -2:].clamp_max(24)
    compare(rows[:, :-4], table)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # the same each time
)
@given(data=st.data())
def test_any_rows(data, table, device):
    length = data.draw(st.integers(1, 40))
    row = st.lists(st.integers(0, 9), min_size=length, max_size=length)
    end = st.integers(0, length)
    made = data.draw(st.lists(st.tuples(row, end, end), min_size=1, max_size=3))
    rows = torch.tensor([[*ids, *sorted(ends)] for ids, *ends in made], dtype=torch.int32)
    compare(
        rows.to(device),
        table,
        seed=data.draw(st.integers(0, 2**32)),
        rate=data.draw(st.floats(0.01, 1.0)),
        top_rate=data.draw(st.sampled_from([0.0, 0.5])),
        shown=data.draw(st.floats(0, 1)),
        rounding=data.draw(st.sampled_from(["round", "ceil"])),
    )


# ------------------------------------------------------------------ in an objective


def ask(objective, rows):
    objective.set_step(5)
    batch, masked, totals = objective.mask_batch(rows)
    return *batch, *masked, totals


@pytest.fixture
def launched(monkeypatch):
    """The calls of the kernel."""
    from electra.kernels.any_gpu import masking

    calls = []

    def write(*tensors, **settings):
        calls.append(settings)
        return mask_rows(*tensors, **settings)

    monkeypatch.setattr(masking, "mask_rows", write)
    return calls


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("count", ["round", "ceil"])
def test_of_an_objective(count, mode, make, stored, launched):
    """Held-out text has the rate of the beginning, and slots for the highest one; 15 % of 24 are 4
    by rounding, of which a row of that length draws 3."""
    rows = stored(3, 24)
    objective = make(
        "rtd", mask_rate=0.15, mask_rate_end=0.45, mask_token_prob=0.6, mask_count_rounding=count
    )
    objective.train(mode == "train").update_progress(0.5)
    wanted = ask(objective, rows)
    use_fused_kernels_(objective)
    same(ask(objective, rows), wanted)
    assert [call["rate"] for call in launched] == [objective.mask_rate if mode == "train" else 0.15]
    assert objective.mask_rate == pytest.approx(0.3)


def test_a_batch_without_text(make, stored):
    rows, objective = stored(3, 24), make("rtd")
    rows[:, -2:] = 0
    wanted = ask(objective, rows)
    assert wanted[-1].tolist() == [1, 1]
    use_fused_kernels_(objective)
    same(ask(objective, rows), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind, make, stored, launched):
    """The plain code where an objective masks or counts in its own way."""
    rows, objective = stored(3, 24), make(kind)
    wanted = ask(objective, rows)
    use_fused_kernels_(objective)
    same(ask(objective, rows), wanted)
    assert bool(launched) == (kind not in ("mlm", "rtd-masked", "electric"))


def test_left_out_where_it_is_another_exercise(make, stored, launched):
    rows, repeated, doc_ids = stored(3, 24), make("rtd", mask_sampling="repeated"), make("rtd")
    doc_ids.document_start_id = 2
    for objective in (repeated, doc_ids):
        wanted = ask(objective, rows)
        use_fused_kernels_(objective)
        same(ask(objective, rows), wanted)
    assert not launched


def test_a_rate_that_a_graph_reads(make, stored, launched):
    rows, objective = stored(3, 24), make("rtd", mask_rate=0.1, mask_rate_end=0.5).train()
    objective.mask_rate = torch.full((), 0.3, dtype=torch.float64, device=rows.device)
    wanted = ask(objective, rows)
    use_fused_kernels_(objective)
    same(ask(objective, rows), wanted)
    assert not launched
    ask(objective.eval(), rows)
    assert launched  # held-out text has a number


def test_rows_that_are_too_long_or_elsewhere(make, stored, launched, monkeypatch):
    objective = make("rtd")
    use_fused_kernels_(objective)
    asked = []
    monkeypatch.setattr(Objective, "mask_batch", lambda self, rows: asked.append(rows))
    many = stored(1, MAX_LENGTH + 1)
    for rows in (many, stored(3, 24).to("meta")):
        objective.mask_batch(rows)
        assert asked[-1] is rows
    assert not launched


def compare_scatter(ids, positions, tokens, where) -> torch.Tensor:
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
    compare_scatter(*is_masked(rows, length, slots))


@pytest.mark.parametrize(("rows", "length", "slots"), SHAPES)
def test_every_position_once_and_the_last_of_a_row(rows, length, slots, is_masked, device):
    """The last slot has the last place: that of a row, not of the next one."""
    ids, _, tokens, where = is_masked(rows, length, slots)
    last = torch.arange(length - slots, length, device=device).expand(rows, -1)
    found = compare_scatter(ids, last, tokens, torch.ones_like(where))
    assert torch.equal(found[:, length - slots :], tokens)


def test_nothing_is_put(is_masked):
    ids, positions, tokens, where = is_masked(3, 24, 4)
    assert torch.equal(compare_scatter(ids, positions, tokens, torch.zeros_like(where)), ids)


def test_a_position_drawn_twice_takes_the_larger_id(device):
    """Also where the slots lie in different tiles; what is not drawn does not count."""
    ids = torch.full((1, 40), 7, device=device)
    positions, tokens = torch.full((1, 40), 3, device=device), torch.zeros_like(ids)
    where = torch.zeros_like(ids, dtype=torch.bool)
    tokens[0, [0, 35, 39]] = torch.tensor([9, 8, 30], device=device)
    where[0, [0, 35]] = True
    assert compare_scatter(ids, positions, tokens, where)[0].tolist() == [7] * 3 + [9] + [7] * 36
    tokens[0, [0, 35]] = torch.tensor([0, 2], device=device)  # the first id of all is one too
    where[0, 35] = False
    assert compare_scatter(ids, positions, tokens, where)[0, 3] == 0


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
    compare_scatter(ids[:, :-2], positions[:, 1:6], tokens[:, 1:6], where[:, 2:7])
