"""A tokenized task, and the card of its model."""

from dataclasses import fields, replace

import torch

from electra.finetune import task_run
from electra.finetune.settings import FinetuneConfig
from electra.hub.heads import TaskCard
from electra.models.encoder import Encoder, EncoderConfig
from electra.tasks.examples import Choice, Question, Sentence, Task
from electra.text.tokenizer import load_tokenizer, load_vocabulary


def test_card_takes_its_fields_from_the_settings():
    given = {"head": "transformers", "dropout": 0.3, "max_length": 99, "doc_stride": 7}
    given |= {"max_question_length": 9, "max_answer_length": 5, "beam_size": 3}
    question = Question(id="0", question="what", context="bread", impossible=True)
    task = Task(name="qa", kind="qa", splits={"train": [question]})
    card = task_run.make_card(task, FinetuneConfig(**given))
    same = {f.name for f in fields(TaskCard)} & {f.name for f in fields(FinetuneConfig)}
    assert same == {*given, "pool"}
    assert {name: getattr(card, name) for name in given} == given


def test_card_says_whether_examples_are_pairs():
    one = Sentence(id="0", text="a", pair=None, label=0)
    found = [
        task_run.make_card(Task(name="x", kind=kind, splits={"train": [example]}), FinetuneConfig())
        for kind, example in (
            ("classify", one),
            ("classify", replace(one, pair="b")),
            ("choice", Choice(id="0", text="a", options=("b", "c"))),
        )
    ]
    assert [card.pairs for card in found] == [False, True, True]


def test_pairs_are_swapped_only_in_training(tokenizer_folder):
    pairs = [Sentence(id=str(n), text="the old", pair="bread", label=n % 2) for n in range(4)]
    splits = {"train": pairs, "dev": pairs, "test": pairs}
    task = Task(name="mrpc", kind="classify", labels=("0", "1"), splits=splits, swap=True)
    start = task_run.PretrainedEncoder(
        folder=tokenizer_folder,
        encoder=Encoder(EncoderConfig(layers=1, hidden=16, embedding=16)),
        tokenizer=load_tokenizer(tokenizer_folder),
        vocab=load_vocabulary(tokenizer_folder),
    )
    config = FinetuneConfig(max_length=16, epochs=1)
    run = task_run.TaskRun.prepare(start, task, config, torch.device("cpu"), {})
    found = {split: len(rows.input_ids) for split, rows in run.features.items()}
    assert found == {"train": 8, "dev": 4, "test": 4}
