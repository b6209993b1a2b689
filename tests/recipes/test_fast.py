"""The fast recipe: the paper's networks and method, trained in other steps."""

from electra.config import flatten
from electra.recipes import recipe
from electra.recipes.fast import small
from electra.train.budget import parse_budget


def test_it_is_found_by_its_name():
    assert recipe("fast.small") == small()
    assert small().name == "fast.small"


def test_it_differs_from_the_paper_only_where_it_says_so():
    ours, paper = (dict(flatten(recipe(name))) for name in ("fast.small", "paper.small"))
    changed = {key for key in ours if ours[key] != paper[key]} - {"name", "train.budget"}
    assert changed == {"model.init", "optim.lr", "optim.warmup", "data.batch_size"}


def test_it_is_trained_in_minutes():
    assert parse_budget(small().train.budget) == parse_budget("25min")
