"""Charts as SVG: scales by hand, points where they belong, text that cannot break out."""

import html
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.train.charts import MAX_POINTS, Curve, chart, number, ticks


def data_of(page: str) -> list[dict]:
    (attribute,) = re.findall(r'data-curves="([^"]*)"', page)
    return json.loads(html.unescape(attribute))


def test_points_lie_on_the_scale():
    page = chart("loss", [Curve(label="a", steps=[0, 5, 10], values=[0.0, 5.0, 10.0], colour="#1")])
    (curve,) = data_of(page)
    assert curve["points"] == [[0, "0", 58, 268], [5, "5", 343, 139], [10, "10", 628, 10]]
    assert 'points="58.0,268.0 343.0,139.0 628.0,10.0"' in page


def test_text_is_escaped():
    evil = "\"><img src=x onerror=alert(1)>'&"
    page = chart(evil, [Curve(label=evil, steps=[1, 2], values=[1.0, 2.0], colour="#1")])
    assert "<img" not in page
    assert data_of(page)[0]["label"] == evil


def test_missing_values_and_single_points():
    nan = float("nan")
    one = Curve(label="a", steps=[1, 2], values=[nan, 3.0], colour="#1")
    page = chart("t", [one, Curve(label="b", steps=[], values=[], colour="#2")])
    assert "<circle" in page
    assert len(data_of(page)) == 1
    assert "nan" not in page
    assert chart("t", [Curve(label="b", steps=[1], values=[nan], colour="#2")]) == ""


def test_long_curves_are_thinned_and_keep_their_end():
    steps = list(range(10_001))
    page = chart("t", [Curve(label="", steps=steps, values=[float(s) for s in steps], colour="#1")])
    points = data_of(page)[0]["points"]
    assert MAX_POINTS / 2 < len(points) <= MAX_POINTS
    assert points[-1][0] == 10_000


@given(st.floats(-1e12, 1e12), st.floats(-1e12, 1e12))
def test_ticks_cover_the_values(a, b):
    low, high = min(a, b), max(a, b)
    found = ticks(low, high)
    slack = 1e-6 * (found[1] - found[0])
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert 2 <= len(found) <= 12


def test_ticks_are_round():
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.31, 0.74) == pytest.approx([0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    assert ticks(3, 3)[0] < 3 < ticks(3, 3)[-1]


@pytest.mark.parametrize(
    ("value", "text"), [(3.0, "3"), (12345.6, "12,346"), (0.123456, "0.1235"), (1.2e-5, "1.2e-05")]
)
def test_numbers(value, text):
    assert number(value) == text
