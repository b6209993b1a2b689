"""Settings of objectives: what is out of range, what belongs to another kind, the mask rate."""

import pytest

from electra.errors import UserError
from electra.objectives.settings import ObjectiveConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mask_rate": 0.0}, "must be between 0 and 1"),
        ({"mask_rate": 1.0}, "must be between 0 and 1"),
        ({"mask_token_prob": 0.95, "random_token_prob": 0.1, "kind": "mlm"}, "sum of the last"),
        ({"mask_rate_end": 1.0}, "mask_rate_end"),
        ({"generator_first": 1.0}, "generator_first must be"),
        ({"temperature": 0.0}, "temperature"),
        ({"gate_weight": -1.0}, "gate_weight must be at least 0"),
        ({"random_token_prob": 0.1, "mask_token_prob": 0.8}, "a setting of objective.kind=mlm"),
        ({"init_from_generator": False}, "a setting of objective.kind=two-stage"),
        ({"generator_first": 0.1, "kind": "mlm"}, "a setting of objective.kind=rtd"),
        ({"mask_sampling": "repeated", "kind": "electric"}, "one sample per position"),
        ({"disallow_correct": True, "kind": "electric"}, "probability of every token"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(UserError, match=message):
        ObjectiveConfig(**settings)


def test_the_mask_rate_changes_linearly():
    config = ObjectiveConfig(mask_rate=0.1, mask_rate_end=0.3)
    assert [config.rate_at(p) for p in (0, 0.5, 1, 1.5)] == pytest.approx([0.1, 0.2, 0.3, 0.3])
    assert config.top_rate == 0.3
    constant = ObjectiveConfig(mask_rate=0.1)
    assert (constant.rate_at(0.7), constant.top_rate) == (0.1, 0.1)
    assert ObjectiveConfig(mask_rate=0.3, mask_rate_end=0.1).top_rate == 0.3
