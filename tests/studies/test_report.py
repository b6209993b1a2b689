"""Tables, pages and figures from made-up results."""

import pytest

from electra.finetune.settings import FinetuneConfig
from electra.studies.paper import STUDIES, find_study
from electra.studies.report import ArmResults, write_report
from electra.studies.score import BlimpScorer, TaskScorer
from electra.studies.study import SCALES, Arm
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
            "flops": arm.budget_fraction * 1e12,
            "paper_flops": arm.budget_fraction * 2e12,
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


def written(study, results, scorers, tmp_path, console, runs=None):
    runs = len(results) if runs is None else runs
    write_report(study, results, scorers, tmp_path, runs=runs, command="electra x", console=console)
    return (tmp_path / "page.md").read_text(encoding="utf-8")


TASKS = [TaskScorer(made_task(name), (0, 1, 2), FinetuneConfig()) for name in ("cola", "rte")]


def test_the_numbers_of_bars(tmp_path, console):
    study = find_study("objectives", SCALES["tiny"])
    results = made_results(study, cola=0.4, rte=0.6, blimp=0.9)
    page = written(study, results, [*TASKS, BlimpScorer(PAIRS)], tmp_path, console)
    # the mean of cola and rte without BLiMP: 50 and 52, and a point less for each arm
    assert "| ELECTRA | 51.0 | 1.4 | 50.0 | 52.0 | 2 | 85.0 | +0.0 | +0.0 |" in page
    assert "| Replace MLM | 49.0 | 1.4 | 48.0 | 50.0 | 2 | 82.4 | -2.0 | -2.6 |" in page
    assert "| BERT | 47.0 | 1.4 | 46.0 | 48.0 | 2 | 82.2 | -4.0 | -2.8 |" in page
    assert "| arm | cola | rte | blimp |" in page
    assert "| BERT | 37.0 | 57.0 | 87.0 |" in page
    assert "| BERT | 1,234 | 5e+06 | 1e+12 | 2e+12 | 3 |" in page
    assert "cola (accuracy), rte (accuracy)" in page
    assert "median of 3 fine-tuning seeds" in page
    assert "10 fine-tuning seeds learned nothing" in page
    assert "an abacus, electra 9.9" in page
    assert "Seeds of pre-training: 0, 1." in page
    assert "```bash\nelectra x\n```" in page
    assert "These are two measures" in page


def test_without_the_first_arm_there_is_nothing_to_subtract(tmp_path, console):
    study = find_study("objectives", SCALES["tiny"])
    results = [r for r in made_results(study, blimp=0.6) if r["arm"] != "ELECTRA"]
    page = written(study, results, [BlimpScorer(PAIRS)], tmp_path, console, runs=10)
    assert "| BERT | 57.0 | 1.4 | 56.0 | 58.0 | 2 | 82.2 |\n" in page
    assert "minus" not in page


def test_one_score_needs_no_table_of_tasks(tmp_path, console):
    study = find_study("objectives", SCALES["small"])
    page = written(
        study, made_results(study, blimp=0.9), [BlimpScorer(PAIRS)], tmp_path, console, runs=99
    )
    assert "| ELECTRA | 91.0 |" in page
    assert "| arm | blimp |" not in page
    assert "So far 10 of 99 runs are done." in page
    assert "proves nothing" not in page


def test_all_of_glue_is_the_papers_measure(tmp_path, console):
    study = find_study("tying", SCALES["paper"])
    names = [name for name in GLUE if name != "wnli"]
    sources = [TaskScorer(made_task(name), (0,), FinetuneConfig()) for name in names]
    results = made_results(study, **dict.fromkeys(names, 0.8))
    assert "another measure" not in written(study, results, sources, tmp_path, console)
    assert "another measure" in written(study, results, sources[1:], tmp_path, console)


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("part", [1, 2, 100])
def test_each_study_can_be_drawn_at_any_time(name, part, tmp_path, console):
    study = find_study(name, SCALES["tiny"])
    results = made_results(study, blimp=0.6)[:part]
    page = written(study, results, [BlimpScorer(PAIRS)], tmp_path, console)
    assert ("minus" in page) == (study.chart == "bars")
    assert study.note in page
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_curve_over_compute(tmp_path, console, monkeypatch):
    """Our points are at the FLOPs of the runs, the paper's at those that it prints."""
    from electra.studies import report as module

    panels = []
    draw = module.draw_panel
    monkeypatch.setattr(
        module,
        "draw_panel",
        lambda study, points, axes: (panels.append((points, axes)), draw(study, points, axes))[1],
    )
    study = find_study("efficiency", SCALES["tiny"])
    written(study, made_results(study, blimp=0.6), [BlimpScorer(PAIRS)], tmp_path, console)
    (_, ours), (_, times), (_, papers) = panels
    assert times.get_xlabel() == "minutes of training"
    assert {x for line in times.get_lines() for x in line.get_xdata()} == {3 / 60}  # 2 and 4 s
    assert ours.get_xscale() == papers.get_xscale() == "log"
    lines = {line.get_label(): line for line in ours.get_lines() if line.get_label()[0] != "_"}
    assert set(lines) == {"ELECTRA", "BERT"}
    assert list(lines["BERT"].get_xdata()) == [0.625e11, 1.25e11, 2.5e11, 5e11, 1e12]
    assert lines["ELECTRA"].get_ydata()[0] == pytest.approx(61)
    lines = {line.get_label(): line for line in papers.get_lines() if line.get_label()[0] != "_"}
    assert list(lines["ELECTRA"].get_ydata()) == [74.1, 76.0, 77.7, 79.0, 79.9]
    assert lines["ELECTRA"].get_xdata()[0] == pytest.approx(8.9e16, rel=0.02)


def test_scores_that_are_not_reported_do_not_count():
    runs = [{"scores": {"rte": {"score": 0.5}, "cola": {"score": 0.75}}}]
    arm = Arm(name="a")
    assert [ArmResults(arm, runs, names).scores for names in (["rte"], ["cola"])] == [
        [50.0],
        [75.0],
    ]
    assert ArmResults(arm, runs, ["rte", "cola"]).scores == [62.5]


def test_diagnostics_of_the_runs(tmp_path, console):
    study = find_study("objectives", SCALES["tiny"])
    results = made_results(study, cola=0.4, rte=0.6)
    for result in results:
        if result["arm"] == "ELECTRA":
            ends = {"generator": None if result["seed"] else 4000, "discriminator": 2000}
            metrics = {"generator_accuracy": 0.2 + 0.2 * result["seed"], "fixed_auc": 0.9}
            result |= {"plateau_ends": ends, "held_out": metrics}
        if result["arm"] == "BERT":
            result |= {"plateau_ends": {"model": 1500}, "held_out": {"model_accuracy": 0.5}}
    page = written(study, results, TASKS, tmp_path, console)
    assert "| ELECTRA | 4,000, never | – | 2,000, 2,000 | 0.300 | – | 0.900 |" in page
    assert "| BERT | – | 1,500, 1,500 | – | – | 0.500 | – |" in page


def test_results_of_earlier_versions_have_no_diagnostics(tmp_path, console):
    study = find_study("objectives", SCALES["tiny"])
    page = written(study, made_results(study, cola=0.4, rte=0.6), TASKS, tmp_path, console)
    assert "plateau" not in page
