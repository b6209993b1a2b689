"""What `classify` and `regress` share: rows of pairs without an order, records, softmax."""

import numpy as np
import pytest

from electra.finetune.kinds.text import label_record, softmax
from electra.tasks.examples import Sentence, Task
from electra.text.tokenizer import load_tokenizer, load_vocabulary


@pytest.mark.parametrize("kind", ["classify", "regress"])
@pytest.mark.parametrize("swap", [False, True])
def test_only_training_rows_are_swapped(kind, swap, make, tokenizer_folder):
    kit = load_tokenizer(tokenizer_folder), load_vocabulary(tokenizer_folder)
    pairs = [Sentence(id="1", text="the old", pair="river", label=1)]
    task = Task(name="made", kind=kind, splits={"train": pairs, "dev": pairs}, swap=swap)
    plain = make(kind).featurize(pairs, *kit)
    (row,) = plain.input_ids
    train = make(kind).featurize_train(task, *kit)
    start = plain.segment_start[0]
    cls, first, sep, second = row[:1], row[1 : start - 1], row[-1:], row[start:-1]
    wanted = [row, np.concatenate([cls, second, sep, first, sep])] if swap else [row]
    assert [list(each) for each in train.input_ids] == [list(each) for each in wanted]
    assert list(train.labels) == [1] * len(wanted)
    assert list(train.example_index) == [0] * len(wanted)


def test_softmax_of_large_scores():
    found = softmax(np.array([[1000.0, 1000.0, -1000.0], [0.0, np.log(3.0), -np.inf]]))
    assert found == pytest.approx(np.array([[0.5, 0.5, 0.0], [0.25, 0.75, 0.0]]))


def test_the_record_names_the_most_likely_label():
    record = label_record("7", ["no", "yes"], np.array([0.2, 0.8]))
    assert record == {"id": "7", "label": "yes", "probabilities": {"no": 0.2, "yes": 0.8}}
