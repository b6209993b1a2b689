"""Budgets in steps, tokens and time."""

import pytest

from electra.errors import UserError
from electra.train.budget import Budget, parse_budget


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("10000steps", 10_000, "steps"),
        ("1step", 1, "steps"),
        ("1e9tokens", 1e9, "tokens"),
        ("2.5e+6 tokens", 2.5e6, "tokens"),
        ("90s", 90, "seconds"),
        ("90sec", 90, "seconds"),
        ("25min", 1500, "seconds"),
        ("1.5h", 5400, "seconds"),
        (" 2H ", 7200, "seconds"),
        ("1d", 86_400, "seconds"),
    ],
)
def test_read(text, amount, unit):
    assert parse_budget(text) == Budget(amount, unit)


@pytest.mark.parametrize(
    "text",
    ["", "10", "steps", "-5steps", "0steps", "0.0h", "1e-3h", "5weeks", "h5", "nanh", "5 5h"],
)
def test_what_is_no_budget_is_refused_with_examples(text):
    with pytest.raises(UserError, match=r"is not a budget: .*25min"):
        parse_budget(text)


@pytest.mark.parametrize(("unit", "spent"), [("steps", 5), ("tokens", 20), ("seconds", 80.0)])
def test_progress_is_the_share_of_its_own_unit(unit, spent):
    now = {"steps": 5, "tokens": 20, "seconds": 80.0}
    assert Budget(100, unit).progress(**now) == spent / 100
    assert Budget(2, unit).progress(**now) == 1  # never beyond the end
    assert Budget(spent, unit).progress(**now) == 1
