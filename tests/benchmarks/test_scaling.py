"""benchmarks/scaling.py: formulas by hand, and the page shows what the script prints."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def scaling():
    spec = importlib.util.spec_from_file_location("scaling", ROOT / "benchmarks" / "scaling.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["scaling"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["scaling"]


@pytest.fixture
def links(scaling):
    return scaling.Links(
        name="", within=100.0, between=10.0, latency_within=0.0, latency_between=0.0
    )


def test_an_all_reduce_by_hand(scaling, links, monkeypatch):
    monkeypatch.setattr(scaling, "RATE_REACHED", 1.0)
    assert scaling.all_reduce_seconds(800.0, 1, links) == 0
    assert scaling.all_reduce_seconds(800.0, 2, links) == pytest.approx(8.0)  # half, twice
    assert scaling.all_reduce_seconds(800.0, 8, links) == pytest.approx(14.0)
    # Two machines: each GPU also exchanges its eighth, 100 bytes, at 10 bytes/s
    assert scaling.all_reduce_seconds(800.0, 16, links) == pytest.approx(14.0 + 10.0)
    monkeypatch.setattr(scaling, "RATE_REACHED", 0.5)
    assert scaling.all_reduce_seconds(800.0, 8, links) == pytest.approx(28.0)


def test_a_step_through_the_measured_points(scaling):
    assert scaling.fit({128: 4.0, 1024: 25.0}) == pytest.approx((1.0, 3 / 128))
    assert scaling.fit({256: 9.0}, fixed=1.0) == pytest.approx((1.0, 1 / 32))
    for size in scaling.sizes():
        for rows, seconds in scaling.measured(size.name).items():
            assert size.compute(rows) == pytest.approx(seconds)
        assert 0 < size.fixed < 0.1 * size.compute(size.batch) or size.name == "paper.small"


def test_the_sizes_are_those_of_the_recipes(scaling):
    small, base, large = scaling.sizes()
    assert [round(s.gradient_bytes / 1e6) for s in (small, base, large)] == [57, 478, 1419]
    assert [s.batch for s in (small, base, large)] == [128, 256, 2048]


def test_more_gpus_are_faster_and_less_efficient(scaling):
    for size in scaling.sizes():
        found = [scaling.predict(size, gpus, 8192, scaling.NVLINK) for gpus in (1, *scaling.GPUS)]
        assert found[0].efficiency == pytest.approx(1.0)
        speeds, shares = [p.tokens_per_second for p in found], [p.efficiency for p in found]
        assert speeds == sorted(speeds)
        assert shares == sorted(shares, reverse=True)
    assert scaling.predict(size, 512, 256, scaling.NVLINK) is None


def test_the_page_has_the_tables(scaling):
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    for links in (scaling.NVLINK, scaling.ETHERNET):
        assert scaling.speed_table(links) in page
    assert scaling.overlap_table(scaling.NVLINK) in page
