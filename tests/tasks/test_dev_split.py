"""The dev split that is made from a train file."""

from electra.tasks.dev_split import example_texts, make_dev_split
from electra.tasks.examples import Sentence


def test_neither_split_is_empty(tmp_path):
    for number in range(20):
        texts = [f"a{number}", *["b"] * 19]
        examples = [Sentence(id=str(i), text=text, label=0.5) for i, text in enumerate(texts)]
        train, dev, _ = make_dev_split(tmp_path, examples, example_texts)
        assert len(train) + len(dev) == 20
        assert {e.text for e in train}.isdisjoint(e.text for e in dev)


def test_train_keeps_an_example_of_each_label(tmp_path):
    for number in range(60):
        texts = [f"{number}-{i}" for i in range(16)]
        examples = [Sentence(id=t, text=t, label=i // 2) for i, t in enumerate(texts)]
        train, dev, _ = make_dev_split(tmp_path, examples, example_texts)
        assert len(dev) == 2
        assert {e.label for e in train} == set(range(8))
