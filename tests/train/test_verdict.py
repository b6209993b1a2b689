"""A run in plain words: healthy, recovered, unclear, or in need of attention."""

import pytest

from electra.train.verdict import judge_run

GOOD = {"kind": "held_out", "step": 9, "auc": 0.9, "recall": 0.5, "precision": 0.8}
GOOD |= {"generator_accuracy": 0.4, "accuracy_floor": 0.2, "accuracy_above_floor": 0.2}
COLLAPSED = GOOD | {"recall": 0.0}
PLATEAU = GOOD | {"accuracy_above_floor": 0.0}
BEGUN = {"kind": "event", "step": 0, "message": "started"}
WARNING = {"kind": "event", "step": 5, "message": "The discriminator has collapsed"}


@pytest.mark.parametrize(
    ("metrics", "health", "words"),
    [
        ([BEGUN, GOOD], "healthy", "90.0% of all pairs"),
        ([BEGUN, GOOD], "healthy", "finds 50.0% of the replaced tokens, and 80.0%"),
        ([BEGUN, GOOD], "healthy", "right for 40.0% of the masked tokens, +20.0 points"),
        ([BEGUN, WARNING, COLLAPSED], "unhealthy", "has collapsed"),
        ([BEGUN, WARNING, PLATEAU], "unhealthy", "opening plateau"),
        ([BEGUN, WARNING, COLLAPSED, GOOD], "recovered", "its last validation is healthy"),
        ([BEGUN, WARNING, COLLAPSED | {"auc": None}], "unhealthy", "AUC nan"),
        ([BEGUN, PLATEAU], "unclear", "that is normal"),
        ([BEGUN], "unclear", "no validation yet"),
        ([{"kind": "held_out", "step": 1, "loss": 2.0}], "healthy", "the loss alone"),
        ([GOOD | {"auc": None}], "healthy", "finds 50.0%"),
    ],
)
def test_verdicts(metrics, health, words):
    found = judge_run(metrics)
    assert found.health == health
    assert words in " ".join(found.sentences)
    assert found.title
