"""The toy recipe: small, and different from the paper only where it says so."""

from electra.config import flatten
from electra.recipes import recipe
from electra.recipes.toy import toy


def test_it_is_found_by_its_name():
    assert recipe("toy") == toy()
    assert toy().name == "toy"


def test_it_keeps_the_papers_method():
    ours, paper = (dict(flatten(recipe(name))) for name in ("toy", "paper.small"))
    changed = {key for key in ours if key.startswith("objective.") and ours[key] != paper[key]}
    assert changed == set()
    assert ours["generator.tie"] == paper["generator.tie"]
