"""`tag`: loss, dropout and failed seeds."""

import numpy as np
import pytest
import torch

from electra.finetune.kinds import make_kind
from electra.finetune.run import resolve_settings
from electra.finetune.settings import FinetuneConfig
from electra.hub.heads import TaskCard
from electra.models.encoder import EncoderConfig
from electra.tasks.examples import IGNORE_INDEX, Tagged, Task


@torch.no_grad()
def test_tag_loss_ignores_tokens_without_a_tag(loss, task_model, features, batch_of, alone):
    rng = np.random.default_rng(1)
    target = [rng.integers(0, 3, n).astype(np.int64) for n in map(len, features(None).input_ids)]
    for tags in target:
        tags[[0, 2, -1]] = IGNORE_INDEX
    model, rows = task_model("tag"), features(target)
    total = 0.0
    for row, tags in enumerate(target):
        for vector, tag in zip(alone(model, rows, row), tags.tolist(), strict=True):
            if tag != IGNORE_INDEX:
                total -= model.head.output(vector).log_softmax(0)[tag].item()
    assert loss(model, batch_of(rows), "tag").item() == pytest.approx(total, rel=1e-4)


def test_tags_are_learned_without_dropout_of_the_head():
    """google-research/electra has none; `transformers` has the setting's."""
    task = Task(name="pos", kind="tag", labels=("A", "B"), splits={})
    for head, dropout in (("paper", 0.0), ("transformers", 0.2)):
        config = FinetuneConfig(head=head, dropout=0.2)
        assert resolve_settings(config, EncoderConfig(), task).dropout == dropout


def test_one_tag_for_all_words_is_a_failure():
    examples = [Tagged(id=str(i), words=("a", "b"), tags=("NOUN", "VERB")) for i in range(4)]
    task = Task(name="pos", kind="tag", labels=("NOUN", "VERB"), splits={"dev": examples})
    card = TaskCard(name="pos", kind="tag", labels=["NOUN", "VERB"])
    records = [{"id": e.id, "tags": ["NOUN", "NOUN"]} for e in examples]
    metrics = make_kind(card).score(task, examples, records)
    assert metrics["accuracy"] == 0.5
    assert make_kind(card).failed(task, records, metrics)
    records[0]["tags"] = ["NOUN", "VERB"]
    assert not make_kind(card).failed(task, records, make_kind(card).score(task, examples, records))


def test_is_labelled():
    kind = make_kind(TaskCard(name="x", kind="tag"))
    assert kind.is_labelled(Tagged(id="0", words=("a",), tags=("NOUN",)))
    assert not kind.is_labelled(Tagged(id="0", words=("a",)))
