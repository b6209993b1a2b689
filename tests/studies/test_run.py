"""`electra study`: complete, interrupted, continued, extended, refused."""

import json
import os
import re
import shutil
import signal
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from electra.errors import UserError
from electra.finetune.results import check_same
from electra.finetune.settings import FinetuneConfig
from electra.studies import run as study_run
from electra.studies import score
from electra.studies.paper import find_study
from electra.studies.run import find_reusable, read_other_results, update_result
from electra.studies.score import score_settings
from electra.studies.study import SCALES, row_costs
from electra.studies.study_run import plan_runs
from electra.train import pretrain
from electra.train.run_config import read_run_config
from electra.train.settings import PretrainConfig
from electra.train.step import Step

ARMS = ("none", "embeddings", "all")


@pytest.fixture
def started(monkeypatch):
    """The runs that were started and continued, in order."""
    seen = []
    start, resume = pretrain.start, pretrain.resume

    def starting(config, out, console):
        seen.append(out.name)
        return start(config, out, console)

    def resuming(out, console, data=None):
        seen.append(f"{out.name} continued")
        return resume(out, console, data)

    monkeypatch.setattr(pretrain, "start", starting)
    monkeypatch.setattr(pretrain, "resume", resuming)
    return seen


def results(out):
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def table(text):
    """The first table of a page by the first cell of each row."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    heads = rows[0]
    found = {}
    for row in rows[2:]:
        if row[0] in found or row[0] == "arm":
            break
        found[row[0]] = dict(zip(heads, row, strict=True))
    return found


def test_interrupted_between_runs_and_continued(electra, command, started, tmp_path, monkeypatch):
    out = tmp_path / "study"
    score_run = study_run.score_run

    def crash(run, *rest):
        if run.arm.name == "embeddings":
            raise KeyboardInterrupt
        return score_run(run, *rest)

    monkeypatch.setattr(study_run, "score_run", crash)
    code, _, err = electra(*command("tying"))
    assert code == 130
    assert "run 1 of 3: none, seed 0" in err
    assert "run 2 of 3: embeddings, seed 0" in err
    assert started == ["none-0", "embeddings-0"]
    assert "So far 1 of 3 runs are done." in (out / "page.md").read_text()
    (first,) = results(out)
    monkeypatch.setattr(study_run, "score_run", score_run)
    code, shown, err = electra(*command("tying"))
    assert code == 0, err
    assert "run 1 of 3: none, seed 0: already done" in err
    assert started == ["none-0", "embeddings-0", "all-0"]  # the second was trained already
    assert results(out)[0] == first
    assert [r["arm"] for r in results(out)] == list(ARMS)
    assert f"Report: {out / 'page.md'}" in shown
    check_whole_study(out, shown)
    code, _, err = electra(*command("tying"))
    assert (code, len(started), len(results(out))) == (0, 3, 3)
    assert err.count("already done") == 3


def check_whole_study(out, shown):
    """What results.jsonl, the table, the page and the figure say."""
    for result in results(out):
        assert result["study"] == "tying"
        assert result["flops"] == pytest.approx(3e9, rel=0.1)
        assert result["flops"] >= 3e9
        config = read_run_config(out / "runs" / f"{result['arm']}-0")
        costs = [result["steps"] * 8 * each for each in row_costs(config)]
        assert [result["flops"], result["paper_flops"]] == costs
        assert costs[0] != costs[1]
        assert result["tokens"] == result["steps"] * 8 * 32
        assert result["settings"]["generator.tie"] == result["arm"]
        assert result["settings"]["model.hidden"] == 32
        assert result["held_out"]["loss"] > 0
        scores = result["scores"]
        assert len(scores) == 2
        assert scores["blimp"]["network"] == "discriminator"
        assert set(scores["blimp"]["phenomena"]) == {"order", "place"}
        (task,) = (scores[name] for name in scores if name != "blimp")
        assert (task["seeds"], task["metric"]) == (2, "accuracy")
        folder = out / "runs" / f"{result['arm']}-0" / "scores" / task["task"]
        tuned = [json.loads(line)["score"] for line in (folder / "results.jsonl").open()]
        assert task["score"] == statistics.median(tuned)
    page = (out / "page.md").read_text()
    assert (out / "table.md").read_text() in page
    assert (out / "table.md").read_text() in shown
    ours, papers = table(page), {"none": "83.6", "embeddings": "84.3", "all": "84.4"}
    for result in results(out):
        ((_, task),) = ((n, s) for n, s in result["scores"].items() if n != "blimp")
        row = ours[result["arm"]]
        assert row["score"] == row["lowest"] == row["highest"] == f"{100 * task['score']:.1f}"
        assert (row["sd"], row["seeds"], row["paper"]) == ("–", "1", papers[result["arm"]])
    assert ours["all"]["the same in the paper"] == "+0.8"
    assert "So far" not in page
    assert "proves nothing" in page
    assert "electra study tying" in page
    assert "--budget 3e9flops" in page
    assert "Seeds of pre-training: 0." in page
    assert "compare the order" in page
    assert "![" in page
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_interrupted_within_a_run(electra, command, started, tmp_path, monkeypatch):
    """Ctrl-C saves; the continued study has the numbers of an uninterrupted one."""
    words = command("tying", score="blimp")
    code, _, err = electra(*words)
    assert code == 0, err
    whole = {
        r["arm"]: (r["scores"], r["held_out"], r["steps"]) for r in results(tmp_path / "study")
    }
    shutil.rmtree(tmp_path / "study")
    started.clear()
    step, count = Step.__call__, iter(range(1000))

    def interrupt(*given):
        if next(count) == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return step(*given)

    monkeypatch.setattr(Step, "__call__", interrupt)
    code, _, err = electra(*words)
    assert code == 130
    assert "Run the same command again to continue the study." in err
    assert not (tmp_path / "study" / "results.jsonl").exists()
    code, _, err = electra(*words)
    assert code == 0, err
    assert started == ["none-0", "none-0 continued", "embeddings-0", "all-0"]
    again = {
        r["arm"]: (r["scores"], r["held_out"], r["steps"]) for r in results(tmp_path / "study")
    }
    assert again == whole


def test_more_seeds_and_more_scores(electra, command, started, tmp_path):
    out = tmp_path / "study"
    assert electra(*command("tying", "--blimp-pairs", 2, score="blimp"))[0] == 0
    assert len(started) == 3
    assert results(out)[0]["scores"]["blimp"]["origin"]["pairs"] == 4
    assert electra(*command("tying", "--blimp-pairs", 2))[0] == 0  # and a task
    assert len(started) == 3
    last = results(out)[-3:]
    assert [r["arm"] for r in last] == list(ARMS)
    assert all(len(r["scores"]) == 2 for r in last)
    assert [r["scores"]["blimp"] for r in last] == [r["scores"]["blimp"] for r in results(out)[:3]]
    words = [*command("tying", "--blimp-pairs", 3)]
    words[words.index("--seeds") + 1] = 2
    code, _, err = electra(*words)
    assert code == 0, err
    assert started[3:] == ["none-1", "embeddings-1", "all-1"]
    assert err.count("finetune") == 0
    last = {(r["arm"], r["seed"]): r for r in results(out)}
    assert {r["scores"]["blimp"]["origin"]["pairs"] for r in last.values()} == {6}
    for arm, row in table((out / "table.md").read_text()).items():
        scores = [
            100 * next(s["score"] for n, s in last[arm, seed]["scores"].items() if n != "blimp")
            for seed in (0, 1)
        ]
        assert row["seeds"] == "2"
        assert row["score"] == f"{statistics.fmean(scores):.1f}"
        assert row["sd"] == f"{statistics.stdev(scores):.1f}"
        assert (row["lowest"], row["highest"]) == (f"{min(scores):.1f}", f"{max(scores):.1f}")


def test_some_arms_and_runs_of_other_studies(electra, refused, command, started, tmp_path):
    short = {"score": "blimp", "budget": "4e8flops"}
    asked = ("--blimp-pairs", 2, "--arms", "Embeddings, all")
    code, shown, err = electra(*command("tying", *asked, **short, out="part"))
    assert code == 0, err
    assert started == ["embeddings-0", "all-0"]
    assert list(table(shown)) == ["embeddings", "all"]
    # An equal generator that shares its embeddings is an arm of another study, too
    reuse = ("--reuse", tmp_path / "part")
    asked = ("--blimp-pairs", 2, "--arms", "width 1,unigram", *reuse)
    code, shown, err = electra(*command("generator-size", *asked, **short, out="sizes"))
    assert code == 0, err
    assert "width 1, seed 0: already done" in err
    assert started[2:] == ["unigram-0"]
    first, last = results(tmp_path / "sizes")
    assert (first["study"], first["arm"]) == ("generator-size", "width 1")
    assert first["scores"] == results(tmp_path / "part")[0]["scores"]
    assert last["arm"] == "unigram"
    # What was asked otherwise, or trained otherwise, is not taken
    for name, more in (
        ("pairs", ("--blimp-pairs", 3)),
        ("rate", ("--blimp-pairs", 2, "optim.lr=1e-3")),
    ):
        asked = (*more, "--arms", "width 1", *reuse)
        assert electra(*command("generator-size", *asked, **short, out=name))[0] == 0
        assert started.pop() == "width-1-0"
        assert len(results(tmp_path / name)) == 1
    said = refused(*command("tying", "--reuse", tmp_path / "nowhere", **short))
    assert "it has no results.jsonl; give the --out of a study" in said
    assert not (tmp_path / "study").exists()


def test_a_score_that_another_study_added_is_copied(electra, command, started, tmp_path):
    """A copied run has no folder here; its later scores are copied, too."""
    part = tmp_path / "part"
    for asked in ("blimp", "both"):
        words = partial(command, "tying", "--arms", "all", score=asked, budget="4e8flops")
        assert electra(*words(out="part"))[0] == 0
        assert electra(*words("--reuse", part))[0] == 0
        assert started == ["all-0"]
        assert results(tmp_path / "study")[-1] == results(part)[-1]


def test_own_scores_are_kept_beside_copied_ones(electra, command, started, tmp_path):
    words = partial(command, "tying", "--arms", "all", budget="4e8flops")
    assert electra(*words(score="task"))[0] == 0
    assert electra(*words(score="blimp", out="part"))[0] == 0
    assert electra(*words("--reuse", tmp_path / "part", score="blimp"))[0] == 0
    assert started == ["all-0", "all-0"]
    assert results(tmp_path / "study")[-1]["scores"].keys() == {"words0", "blimp"}


def test_a_copied_score_replaces_one_of_other_pairs(electra, command, started, tmp_path):
    for pairs in (2, 3):
        asked = ("--arms", "all", "--blimp-pairs", pairs)
        words = partial(command, "tying", *asked, score="blimp", budget="4e8flops")
        assert electra(*words(out="part"))[0] == 0
        assert electra(*words("--reuse", tmp_path / "part"))[0] == 0
        assert started == ["all-0"]
        assert results(tmp_path / "study")[-1] == results(tmp_path / "part")[-1]


def test_every_objective_is_scored_by_its_main_network(electra, command, tmp_path, monkeypatch):
    asked_of, probe = [], score.probe

    def probing(model, *given, **more):
        asked_of.append(Path(model).name)
        return probe(model, *given, **more)

    monkeypatch.setattr(score, "probe", probing)
    code, _, err = electra(*command("objectives", score="blimp", budget="4e8flops"))
    assert code == 0, err
    asked = {r["arm"]: r["scores"]["blimp"]["network"] for r in results(tmp_path / "study")}
    assert asked == {
        "ELECTRA": "discriminator",
        "ELECTRA 15 %": "discriminator",
        **dict.fromkeys(("All-Tokens MLM", "Replace MLM", "BERT"), "generator"),
    }
    assert asked_of == ["discriminator", "mlm", "mlm", "discriminator", "mlm"]
    page = (tmp_path / "study" / "page.md").read_text()
    assert "guessing gives 50" in page
    assert "These are two measures" in page


def test_other_settings_are_refused(electra, refused, command, tmp_path):
    words = command("tying", score="blimp", budget="4e8flops")
    assert electra(*words)[0] == 0
    changed = command("tying", score="blimp", budget="5e8flops")
    assert "train.budget" in refused(*changed)
    assert "optim.lr=0.0015, not 0.01" in refused(*words, "optim.lr=0.01")
    other = command("generator-size", score="blimp", budget="4e8flops")
    assert "holds results of another study: choose another --out" in refused(*other)
    (tmp_path / "study" / "results.jsonl").unlink()  # the runs alone tell it, too
    said = refused(*changed)
    assert "belongs to another study" in said
    assert "train.budget" in said


def test_other_data_is_refused(electra, refused, command, corpus, tokenizer_folder, tmp_path):
    from electra.text.prepare import prepare

    words = [*command("tying", score="blimp", budget="4e8flops")]
    assert electra(*words)[0] == 0
    other = tmp_path / "other"
    prepare([corpus], tokenizer=tokenizer_folder, out=other, length=32, workers=1, held_out=0.2)
    words[words.index("--data") + 1] = other
    assert "another data" in refused(*words)
    (tmp_path / "study" / "results.jsonl").unlink()
    assert "other data" in refused(*words)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("optim.lr=-1x",), "optim.lr"),
        (("optim.rate=1",), "did you mean"),
        (("generator.tie=none",), "tying sets generator.tie itself"),
        (("--scale", "huge"), "There is no scale 'huge': there are: paper, small, tiny."),
        (("--budget", "20steps"), "equal FLOPs"),
        (("--seeds", "none"), "--seeds"),
        (("--seeds", "99999999999"), "--seeds 99999999999: give a number"),
        (("--tuning-seeds", "0"), "--tuning-seeds 0: give a number"),
        (("--arms", ","), "--arms names no arm: tying has none, embeddings, all, gdes."),
        (("--arms", "non,all"), "tying has no arm 'non': did you mean 'none'?"),
        (("--task", "classify"), "--task-data belong together"),
        (("--tasks", "cola"), "--glue"),
        (("--glue", "nowhere"), "nowhere"),
        (("--tuning", "rate=1"), "rate"),
        (("--data", "nowhere"), "nowhere"),
        (("data.seq_length=64",), "32"),
        (("model.hidden=30", "model.heads=4"), "The arm 'none' of tying is refused: "),
    ],
)
def test_refused(refused, command, more, said, tmp_path):
    assert said in refused(*command("tying", *more, score="blimp"))
    assert not (tmp_path / "study" / "runs").exists()


def test_refused_without_a_score_or_a_folder(electra, refused, command, tmp_path):
    assert "--glue DIR, --blimp DIR" in refused(*command("tying", score="none"))
    assert "did you mean 'tying'" in refused(*command("tieing"))
    assert "--data" in refused("study", "tying")
    (tmp_path / "study").write_text("a file")
    assert "is a file" in refused(*command("tying"))
    assert "is a file, and --out must be a folder" in refused(*command("tying", out="study/x"))


def test_a_folder_with_other_files_is_refused(refused, command, tmp_path):
    out = tmp_path / "study"
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    assert "is not empty and holds no study: choose another --out" in refused(*command("tying"))
    assert [path.name for path in out.iterdir()] == ["letter.txt"]
    (out / "results.jsonl").write_text('{"task": "rte", "seed": 0}\n')  # as of electra finetune
    assert "holds results of another study" in refused(*command("tying"))


def test_settings_of_arms_are_refused_for_a_single_arm_too(refused, command):
    words = command("objectives", "--arms", "ELECTRA", "objective.kind=mlm", score="blimp")
    assert "objectives sets objective.kind itself" in refused(*words)


def test_arms_that_differ_in_the_generator_need_one(refused, command):
    words = command("tying", "objective.kind=mlm", score="blimp")
    assert "and objective.kind=mlm has none: leave it out" in refused(*words)


def test_a_study_finishes_when_its_output_is_not_read(unread, command, tmp_path):
    words = command("tying", "--arms", "none", score="blimp", budget="4e8flops")
    assert unread(*words) == 0
    assert "| none |" in (tmp_path / "study" / "page.md").read_text()


def test_the_list(electra):
    code, shown, _ = electra("study")
    assert code == 0
    names = [line.split()[0] for line in shown.splitlines()]
    assert names == [
        *("objectives", "generator-size", "tying", "training-algorithms"),
        *("efficiency", "hidden-size", "ablation"),
    ]
    assert re.search(r"tying +\S", shown)


def test_without_matplotlib(electra, command, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = electra(*command("tying", score="blimp", budget="4e8flops"))
    assert code == 0, err
    assert "no figure" in err
    assert "electra[plot]" in err
    page = (tmp_path / "study" / "page.md").read_text()
    assert "![" not in page
    assert "| none |" in page
    assert not (tmp_path / "study" / "figure.png").exists()


STORED = Path(__file__).parents[2] / "benchmarks" / "studies"


def stored_results(name):
    return [json.loads(line) for line in (STORED / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["objectives", "tying", "generator-size"])
def test_results_of_earlier_versions_have_the_settings_of_todays_runs(name, tmp_path):
    """They were stored under old names, as data.batch, model.start and train.kernels."""
    study = find_study(name, SCALES["small"])
    runs = plan_runs(study, tmp_path / "data", tmp_path / "out", range(4), [])
    runs = {run.key: run for run in runs}
    for result in stored_results(name):
        assert "data.batch" in result["settings"]
        updated = update_result(result)
        run = runs[result["arm"], result["seed"]]
        digest = result["data_digest"]
        assert updated["settings"] == run.identity(digest)["settings"]
        check_same(tmp_path, [updated], run.identity(digest))
        changed = replace(run.config, data=replace(run.config.data, batch_size=64))
        with pytest.raises(UserError, match=r"data\.batch_size=128, not 64"):
            check_same(tmp_path, [updated], replace(run, config=changed).identity(digest))


def test_a_stored_result_is_reused_although_its_settings_were_renamed(tmp_path):
    result = stored_results("objectives")[0]
    (tmp_path / "results.jsonl").write_text(json.dumps(result) + "\n")
    study = find_study("objectives", SCALES["small"])
    run = plan_runs(study, tmp_path, tmp_path, [result["seed"]], [])[0]
    shards = SimpleNamespace(digest=result["data_digest"])
    origin = dict(result["scores"]["cola"]["origin"])
    origin["settings"] = score_settings(FinetuneConfig(epochs=3))
    scorer = SimpleNamespace(name="cola", origin=origin)
    others = read_other_results(tmp_path)
    found = find_reusable(run, shards, others, [scorer], None)
    assert found["scores"]["cola"]["score"] == result["scores"]["cola"]["score"]
    other = replace(run, config=replace(run.config, name="other"))
    assert find_reusable(other, shards, others, [scorer], None) is None
    scorer.origin = {**origin, "seeds": [0]}
    assert find_reusable(run, shards, others, [scorer], None) is None


def test_settings_that_a_stored_result_lacks_have_their_defaults():
    result = stored_results("objectives")[0]
    del result["settings"]["train.keep_best"]
    del result["scores"]["cola"]["origin"]["settings"]["clip"]
    updated = update_result(result)
    assert updated["settings"]["train.keep_best"] is True
    assert updated["scores"]["cola"]["origin"]["settings"]["clip"] == 1.0


def test_a_study_of_an_earlier_version_continues(electra, command, started, tmp_path):
    """Its runs are in `cells` and its results have old names of settings."""
    words = command("tying", "--arms", "none,all", score="blimp", budget="4e8flops")
    assert electra(*words)[0] == 0
    out = tmp_path / "study"
    (out / "runs").rename(out / "cells")
    old = {new: old for old, new in PretrainConfig.RENAMED_KEYS.items()}
    first = results(out)[0]
    first["settings"] = {old.get(k, k): v for k, v in first["settings"].items()}
    assert "data.batch" in first["settings"]
    (out / "results.jsonl").write_text(json.dumps(first) + "\n")
    code, _, err = electra(*words)
    assert code == 0, err
    assert "run 1 of 2: none, seed 0: already done" in err
    assert started == ["none-0", "all-0"]  # the second is trained; only its score is missing
    assert [r["arm"] for r in results(out)] == ["none", "all"]
    assert not (out / "runs").exists()


def test_a_folder_with_runs_of_its_own_is_refused(refused, command, tmp_path):
    (tmp_path / "study" / "runs" / "first").mkdir(parents=True)
    assert "is not empty and holds no study" in refused(*command("tying"))


@pytest.mark.parametrize(
    "line",
    [{"settings": None, "scores": {}}, {"settings": {}, "scores": []},
     {"settings": {}, "scores": {"a": {"origin": None}}}],
)  # fmt: skip
def test_damaged_results_of_another_study_are_refused(line, tmp_path):
    (tmp_path / "results.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(UserError, match="is damaged"):
        read_other_results(tmp_path)
