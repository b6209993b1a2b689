"""Where the scores of a study come from."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from electra.config import override
from electra.errors import UserError
from electra.finetune.settings import FinetuneConfig
from electra.studies.score import (
    BlimpScorer,
    TaskScorer,
    build_scorers,
    limit_pairs,
    main_score,
)
from electra.tasks.blimp import Pair
from electra.tasks.examples import Sentence, Task

PAIRS = [
    Pair(phenomenon="p", paradigm=f"{number % 2}", good=f"{number}", bad="") for number in range(10)
]
EXAMPLES = [Sentence(id="0", text="a", pair=None, label=0)]
COLA = Task(name="cola", kind="classify", splits={"train": EXAMPLES, "dev": EXAMPLES})
SCORER = TaskScorer(COLA, (0, 1, 2), FinetuneConfig())


def test_main_score():
    assert main_score({"a": {"score": 0.2}, "b": {"score": 0.4}}) == pytest.approx(0.3)
    assert main_score({"a": {"score": 0.2}, "blimp": {"score": 0.4}}) == pytest.approx(0.2)
    assert main_score({"blimp": {"score": 0.4}}) == pytest.approx(0.4)


def test_some_pairs_of_each_paradigm():
    assert [p.good for p in limit_pairs(PAIRS, 2)] == ["0", "1", "2", "3"]
    assert limit_pairs(PAIRS, 0) == PAIRS


def test_the_origin_of_a_score():
    one = SCORER
    assert one.origin != replace(one, seeds=(0,)).origin
    assert one.origin != replace(one, config=FinetuneConfig(lr=1)).origin
    assert (
        one.origin
        == replace(
            one, config=override(FinetuneConfig(), ["device=cpu", "parallel_seeds=2"])
        ).origin
    )
    assert BlimpScorer(PAIRS).origin != BlimpScorer(PAIRS[:-1]).origin


def test_the_median_of_the_fine_tuning_seeds(tmp_path, console, monkeypatch):
    seeds = [
        {"task": "cola", "metric": "accuracy", "seed": seed, "score": score, "failed": score == 0}
        for seed, score in enumerate((0.5, 0.0, 0.4))
    ]
    monkeypatch.setattr("electra.studies.score.finetune", lambda *given: seeds)
    found = SCORER.score(tmp_path, console)
    assert (found["score"], found["highest"], found["failed"]) == (0.4, 0.5, [1])
    assert found["origin"] == SCORER.origin


def test_every_pair_counts_the_same(tmp_path, console, monkeypatch):
    found = [
        SimpleNamespace(phenomenon=n, accuracy=a, pairs=c) for n, a, c in (("a", 1, 8), ("b", 0, 2))
    ]
    monkeypatch.setattr(
        "electra.studies.score.resolve_model", lambda *_: tmp_path / "discriminator"
    )
    monkeypatch.setattr(
        "electra.studies.score.probe", lambda model, pairs, networks, console: {networks[0]: found}
    )
    assert BlimpScorer(PAIRS).score(tmp_path, console)["score"] == pytest.approx(0.8)


def test_build_scorers(tmp_path):
    for name, head in {"CoLA": "sentence\tlabel", "RTE": "sentence1\tsentence2\tlabel"}.items():
        row = "a\t1" if name == "CoLA" else "a\tb\tentailment"
        (tmp_path / name).mkdir()
        for split in ("train", "dev"):
            (tmp_path / name / f"{split}.tsv").write_text(f"{head}\n{row}\n")
    given = {
        **{"glue": tmp_path, "tasks": [], "task": None, "task_data": None, "blimp": None},
        **{"blimp_pairs": 0, "seeds": [0, 1], "config": FinetuneConfig()},
    }
    assert [s.name for s in build_scorers(**given)] == ["cola", "rte"]
    assert [s.name for s in build_scorers(**given | {"tasks": ["RTE"]})] == ["rte"]
    with pytest.raises(UserError, match="no task mnli"):
        build_scorers(**given | {"tasks": ["mnli"]})
    with pytest.raises(UserError, match="'rte' is given twice"):
        build_scorers(**given | {"task": "rte", "task_data": tmp_path})
