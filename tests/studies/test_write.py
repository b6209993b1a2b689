"""Tables, pages and figures from made-up results; and where scores come from."""

from dataclasses import replace

import pytest

from electra.errors import UserError
from electra.finetune import probe
from electra.finetune.settings import FinetuneConfig
from electra.studies.named import STUDIES, find_study
from electra.studies.score import Probed, Tuned, first_pairs, headline, open_sources
from electra.studies.study import SCALES, Arm
from electra.studies.write import Row, write
from electra.tasks.blimp import Pair
from electra.tasks.examples import Sentence, Task
from electra.tasks.glue import GLUE

PAIRS = [
    Pair(phenomenon="p", paradigm=f"{number % 2}", good=f"{number}", bad="") for number in range(10)
]


def made_task(name):
    examples = [Sentence(id="0", text="a", pair=None, label=0)]
    return Task(name=name, kind="classify", splits={"train": examples, "dev": examples})


def made_results(study, seeds=2, **scores):
    """The first arm has the given scores, each next one a point less; each seed 2 points more."""
    return [
        {
            "arm": arm.name,
            "seed": seed,
            "steps": 1234,
            "tokens": 5e6,
            "flops": arm.share * 1e12,
            "paper_flops": arm.share * 2e12,
            "seconds": 2.0 + 2.0 * seed,
            "scores": {
                name: {"score": value - 0.01 * place + 0.02 * seed, "failed": [1] * seed}
                for name, value in scores.items()
            },
            "hardware": "an abacus",
            "version": "9.9",
            "torch": "2.0",
        }
        for seed in range(seeds)
        for place, arm in enumerate(study.arms)
    ]


def written(study, results, sources, tmp_path, console, cells=None):
    cells = len(results) if cells is None else cells
    write(study, results, sources, tmp_path, cells=cells, command="electra x", console=console)
    return (tmp_path / "page.md").read_text(encoding="utf-8")


TASKS = [Tuned(made_task(name), (0, 1, 2), FinetuneConfig()) for name in ("cola", "rte")]


def test_the_numbers_of_bars(tmp_path, console):
    study = find_study("objectives", SCALES["tiny"])
    results = made_results(study, cola=0.4, rte=0.6, blimp=0.9)
    page = written(study, results, [*TASKS, Probed(PAIRS)], tmp_path, console)
    # the mean of cola and rte without BLiMP: 50 and 52, and a point less for each arm
    assert "| ELECTRA | 51.0 | 1.4 | 50.0 | 52.0 | 2 | 85.0 | +0.0 | +0.0 |" in page
    assert "| Replace MLM | 49.0 | 1.4 | 48.0 | 50.0 | 2 | 82.4 | -2.0 | -2.6 |" in page
    assert "| BERT | 47.0 | 1.4 | 46.0 | 48.0 | 2 | 82.2 | -4.0 | -2.8 |" in page
    assert "| arm | cola | rte | blimp |" in page
    assert "| BERT | 37.0 | 57.0 | 87.0 |" in page
    assert "| BERT | 1,234 | 5e+06 | 1e+12 | 2e+12 | 3 |" in page
    assert "cola (accuracy), rte (accuracy)" in page
    assert "the median of 3 fine-tuning seeds" in page
    assert "10 fine-tuning seeds learned nothing" in page
    assert "an abacus, electra 9.9" in page
    assert "Seeds of pre-training: 0, 1." in page
    assert "```bash\nelectra x\n```" in page
    assert "These are two measures" in page


def test_without_the_first_arm_there_is_nothing_to_subtract(tmp_path, console):
    study = find_study("objectives", SCALES["tiny"])
    results = [r for r in made_results(study, blimp=0.6) if r["arm"] != "ELECTRA"]
    page = written(study, results, [Probed(PAIRS)], tmp_path, console, cells=10)
    assert "| BERT | 57.0 | 1.4 | 56.0 | 58.0 | 2 | 82.2 |\n" in page
    assert "minus" not in page


def test_one_score_needs_no_table_of_tasks(tmp_path, console):
    study = find_study("objectives", SCALES["small"])
    page = written(
        study, made_results(study, blimp=0.9), [Probed(PAIRS)], tmp_path, console, cells=99
    )
    assert "| ELECTRA | 91.0 |" in page
    assert "| arm | blimp |" not in page
    assert "So far 10 of 99 cells are done." in page
    assert "proves nothing" not in page


def test_all_of_glue_is_the_papers_measure(tmp_path, console):
    study = find_study("tying", SCALES["paper"])
    names = [name for name in GLUE if name != "wnli"]
    sources = [Tuned(made_task(name), (0,), FinetuneConfig()) for name in names]
    results = made_results(study, **dict.fromkeys(names, 0.8))
    assert "another measure" not in written(study, results, sources, tmp_path, console)
    assert "another measure" in written(study, results, sources[1:], tmp_path, console)


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("part", [1, 2, 100])
def test_each_study_can_be_drawn_at_any_time(name, part, tmp_path, console):
    study = find_study(name, SCALES["tiny"])
    results = made_results(study, blimp=0.6)[:part]
    page = written(study, results, [Probed(PAIRS)], tmp_path, console)
    assert ("minus" in page) == (study.form == "bars")
    assert study.note in page
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_curve_over_compute(tmp_path, console, monkeypatch):
    """Our FLOPs are what was spent; the paper's points stand where it prints them."""
    from electra.studies import write as module

    panels = []
    draw = module.draw_panel
    monkeypatch.setattr(
        module,
        "draw_panel",
        lambda study, points, axes: (panels.append((points, axes)), draw(study, points, axes))[1],
    )
    study = find_study("efficiency", SCALES["tiny"])
    written(study, made_results(study, blimp=0.6), [Probed(PAIRS)], tmp_path, console)
    (_, ours), (_, papers) = panels
    assert ours.get_xscale() == papers.get_xscale() == "log"
    lines = {line.get_label(): line for line in ours.get_lines() if line.get_label()[0] != "_"}
    assert set(lines) == {"ELECTRA", "BERT"}
    assert list(lines["BERT"].get_xdata()) == [0.625e11, 1.25e11, 2.5e11, 5e11, 1e12]
    assert lines["ELECTRA"].get_ydata()[0] == pytest.approx(61)
    lines = {line.get_label(): line for line in papers.get_lines() if line.get_label()[0] != "_"}
    assert list(lines["ELECTRA"].get_ydata()) == [74.1, 76.0, 77.7, 79.0, 79.9]
    assert lines["ELECTRA"].get_xdata()[0] == pytest.approx(8.9e16, rel=0.02)


def test_headline():
    assert headline({"a": {"score": 0.2}, "b": {"score": 0.4}}) == pytest.approx(0.3)
    assert headline({"a": {"score": 0.2}, "blimp": {"score": 0.4}}) == pytest.approx(0.2)
    assert headline({"blimp": {"score": 0.4}}) == pytest.approx(0.4)


def test_a_score_that_nobody_asked_for_does_not_count():
    cells = [{"scores": {"rte": {"score": 0.5}, "cola": {"score": 0.75}}}]
    arm = Arm(name="a")
    assert [Row(arm, cells, names).scores for names in (["rte"], ["cola"])] == [[50.0], [75.0]]
    assert Row(arm, cells, ["rte", "cola"]).scores == [62.5]


def test_some_pairs_of_each_paradigm():
    assert [p.good for p in first_pairs(PAIRS, 2)] == ["0", "1", "2", "3"]
    assert first_pairs(PAIRS, 0) == PAIRS


def test_a_score_knows_where_it_came_from():
    one = TASKS[0]
    assert one.origin != replace(one, seeds=(0,)).origin
    assert one.origin != replace(one, config=FinetuneConfig(lr=1)).origin
    assert one.origin == replace(one, config=FinetuneConfig(device="cpu", parallel_seeds=2)).origin
    assert Probed(PAIRS).origin != Probed(PAIRS[:-1]).origin


def test_the_median_of_the_fine_tuning_seeds(tmp_path, console, monkeypatch):
    seeds = [
        {"task": "cola", "metric": "accuracy", "seed": seed, "score": score, "failed": score == 0}
        for seed, score in enumerate((0.5, 0.0, 0.4))
    ]
    monkeypatch.setattr("electra.studies.score.finetune", lambda *given: seeds)
    found = TASKS[0].ask(tmp_path, console)
    assert (found["score"], found["highest"], found["failed"]) == (0.4, 0.5, [1])
    assert found["origin"] == TASKS[0].origin


def test_every_pair_counts_the_same(tmp_path, console, monkeypatch):
    found = [
        probe.PhenomenonAccuracy(phenomenon=n, accuracy=a, pairs=c)
        for n, a, c in (("a", 1, 8), ("b", 0, 2))
    ]
    monkeypatch.setattr(
        "electra.studies.score.resolve_model", lambda *_: tmp_path / "discriminator"
    )
    monkeypatch.setattr("electra.studies.score.probe", lambda *_, **__: found)
    assert Probed(PAIRS).ask(tmp_path, console)["score"] == pytest.approx(0.8)


def test_sources(tmp_path):
    for name, head in {"CoLA": "sentence\tlabel", "RTE": "sentence1\tsentence2\tlabel"}.items():
        row = "a\t1" if name == "CoLA" else "a\tb\tentailment"
        (tmp_path / name).mkdir()
        for split in ("train", "dev"):
            (tmp_path / name / f"{split}.tsv").write_text(f"{head}\n{row}\n")
    given = {
        **{"glue": tmp_path, "tasks": [], "task": None, "task_data": None, "blimp": None},
        **{"blimp_pairs": 0, "seeds": [0, 1], "config": FinetuneConfig()},
    }
    assert [s.name for s in open_sources(**given)] == ["cola", "rte"]
    assert [s.name for s in open_sources(**given | {"tasks": ["RTE"]})] == ["rte"]
    with pytest.raises(UserError, match="no mnli"):
        open_sources(**given | {"tasks": ["mnli"]})
    with pytest.raises(UserError, match="'rte' is asked for twice"):
        open_sources(**given | {"task": "rte", "task_data": tmp_path})
