"""The pages on fine-tuning: their examples run, and the options and errors they name exist."""

import json
import re
import shlex
import zipfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import typer.main

from electra.cli import app
from electra.config import override
from electra.finetune.glue import AVERAGED, PUBLISHED
from electra.finetune.settings import FinetuneConfig

ROOT = Path(__file__).parent.parent
PAGES = ["finetune", "glue", "your-own-task", "questions", "tagging", "probe"]
SETTINGS = {field.name for field in fields(FinetuneConfig)}


def page_text(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def blocks(page: str, language: str, mark: str = "") -> list[str]:
    before = rf"<!-- {mark} -->\n" if mark else ""
    return re.findall(rf"{before}```{language}\n(.*?)```", page_text(page), re.S)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ------------------------------------------------------------------ the examples


@pytest.fixture
def example(finished, bash, tmp_path):
    """Run the example of a page with a model at `runs/first`; returns the folder and the output."""

    def run(page: str) -> tuple[Path, str]:
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "first").symlink_to(finished)
        (script,) = blocks(page, "bash", "tested")
        return tmp_path, bash(script)

    return run


def check_out(out: Path, metric: str, seeds: int = 2) -> list[dict]:
    """Check the files that every page describes; returns the results."""
    results = lines(out / "results.jsonl")
    assert [r["seed"] for r in results] == list(range(seeds))
    for result in results:
        assert result["metric"] == metric
        assert result["score"] == result[metric]
        assert lines(out / "predictions" / f"seed-{result['seed']}" / "dev.jsonl")
    assert {"config.json", "model.safetensors", "task.json", "tokenizer.json"} <= {
        path.name for path in (out / "model").iterdir()
    }
    return results


def test_the_example_of_finetune(example, monkeypatch, capsys):
    folder, said = example("finetune")
    results = check_out(folder / "guests", "accuracy", seeds=3)
    assert max(r["accuracy"] for r in results) > 0.7  # guessing gives 0.5
    assert said.count("median of") == 2
    named = set(re.findall(r"`(\w+)`", page_text("finetune").split("**A line of")[1]))
    assert set(results[0]) - {"matthews"} <= named  # each field is in the table
    (answer,) = lines(folder / "answers.jsonl")
    assert answer["label"] in ("pleased", "cross")
    (script,) = blocks("finetune", "python", "tested after the example")
    monkeypatch.chdir(folder)
    exec(script, {})
    chances = dict(line.split() for line in capsys.readouterr().out.splitlines())
    for label, chance in answer["probabilities"].items():  # transformers says the same
        assert float(chances[label]) == pytest.approx(chance, abs=1e-3)


def test_the_example_of_glue(example):
    folder, said = example("glue")
    check_out(folder / "scores" / "cola", "matthews")
    check_out(folder / "scores" / "stsb", "spearman")
    assert len(lines(folder / "scores" / "results.jsonl")) == 4
    assert [
        row["task"] for row in json.loads((folder / "scores/summary.json").read_text())["tasks"]
    ] == [
        "cola",
        "stsb",
    ]
    assert "| stsb | spearman |" in said  # the printed table.md
    assert (folder / "scores" / "glue.png").is_file()
    with zipfile.ZipFile(folder / "scores" / "submission" / "submission.zip") as archive:
        assert archive.namelist() == ["CoLA.tsv"]  # the one task with a test file


def test_the_example_of_your_own_task(example):
    folder, said = example("your-own-task")
    assert check_out(folder / "errands", "spearman")[0].keys() >= {"pearson", "mse"}
    check_out(folder / "work", "accuracy")
    moods = check_out(folder / "mood", "accuracy")
    assert moods[0].keys() >= {"matthews", "f1_macro"}
    assert max(r["accuracy"] for r in moods) > 0.5  # guessing gives 0.33
    answers = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [set(a["probabilities"]) for a in answers] == [{"glad", "calm", "low"}] * 2
    said_of = lines(folder / "errands" / "predictions" / "seed-0" / "dev.jsonl")
    values = [record["value"] for record in said_of]
    assert 1 < sum(values) / len(values) < 11  # in the units of the file, 2 to 10


def test_the_example_of_questions(example):
    folder, _ = example("questions")
    results = check_out(folder / "answers", "f1")
    assert results[0].keys() >= {
        *("exact_match", "has_answer_f1", "has_answer_exact_match"),
        *("no_answer_f1", "no_answer_exact_match", "best_f1", "best_exact_match"),
        *("best_f1_threshold", "best_exact_match_threshold"),
    }
    assert max(r["best_f1"] for r in results) > 0.6  # always 'no answer' gives about a third
    card = json.loads((folder / "answers" / "model" / "task.json").read_text())
    best = max(results, key=lambda r: r["score"])
    assert card["null_threshold"] == best["best_f1_threshold"]
    found = lines(folder / "found.jsonl")
    assert [set(record) for record in found] == [{"id", "answer", "null", "n_best"}] * 2
    assert set(found[0]["n_best"][0]) == {"text", "score", "probability"}


def test_the_example_of_tagging(example):
    folder, said = example("tagging")
    results = check_out(folder / "tagged", "f1")
    assert results[0].keys() >= {"accuracy", "precision", "recall"}
    assert max(r["f1"] for r in results) > 0.6
    (found,) = lines(folder / "found.jsonl")
    assert json.loads(said.splitlines()[-1]) == found
    assert len(found["words"]) == len(found["tags"]) == 7
    assert {tag[:2] for tag in found["tags"]} <= {"O", "B-", "I-"}  # the file's scheme, not BIOES


def test_the_example_of_probe(example):
    folder, said = example("probe")
    assert "Chance level: 50 %" in said
    probed = lines(folder / "probed.jsonl")
    assert {(p["network"], p["phenomenon"]) for p in probed if p["phenomenon"] != "all"} == {
        (network, phenomenon)
        for network in ("discriminator", "generator", "combined")
        for phenomenon in ("order", "place")
    }
    assert all(0 <= p["accuracy"] <= 1 for p in probed)


@pytest.mark.parametrize("page", PAGES)
def test_an_example_is_short_and_makes_its_own_data(page):
    (script,) = blocks(page, "bash", "tested")
    data, commands = re.fullmatch(
        r"python - <<'END'\n(.*?)^END\n(.*)", script, re.S | re.M
    ).groups()
    assert len(data.splitlines()) <= 30
    assert "runs/first" in commands
    assert "http" not in script


# ------------------------------------------------------------ names in the pages


def command_options() -> dict[str, set[str]]:
    """The options of every command: `finetune` -> --data, --out, …"""
    found: dict[str, set[str]] = {}

    def walk(command, name: str) -> None:
        found[name] = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        for inner, each in getattr(command, "commands", {}).items():
            walk(each, f"{name} {inner}".strip())

    walk(typer.main.get_command(app), "")
    return found


def commands(page: str) -> Iterator[list[str]]:
    """The calls of `electra` in the page's blocks of bash."""
    for block in blocks(page, "bash"):
        for line in block.splitlines():
            if line.startswith("electra "):
                yield shlex.split(line, comments=True)[1:]


@pytest.mark.parametrize("page", PAGES)
def test_options_and_settings_of_the_commands_exist(page):
    options = command_options()
    called = list(commands(page))
    assert called
    for name, *words in called:
        assert {word for word in words if word.startswith("--")} <= options[name]
        settings = [word for word in words if re.match(r"\w+=", word)]
        if name in ("finetune", "glue"):
            override(FinetuneConfig(), settings)  # unknown keys and wrong values are refused
        else:
            assert not settings


@pytest.mark.parametrize("page", PAGES)
def test_options_and_settings_in_the_text_exist(page):
    prose = re.sub(r"```.*?```", "", page_text(page), flags=re.S)
    every = set().union(*command_options().values())
    named = re.findall(r"`([^`]+)`", prose)
    for code in named:
        assert {word for word in code.split() if word.startswith("--")} <= every, code
    settings = [word for code in named for word in code.split() if re.match(r"\w+=[^…]", word)]
    known = [word for word in settings if word != "key=value"]
    override(FinetuneConfig(), known)


def test_every_setting_is_in_the_overview():
    part = page_text("finetune").split("## Settings")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", part)) >= SETTINGS


def test_the_published_scores_are_those_of_the_code():
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page_text("glue").splitlines()
        if re.match(r"\| (Small|Base|Large)", line)
    ]
    assert len(rows) == len(PUBLISHED)
    for (_, *cells, mean), scores in zip(rows, PUBLISHED.values(), strict=True):
        assert [float(cell) for cell in cells] == list(scores)
        assert float(mean) == pytest.approx(sum(scores) / len(AVERAGED), abs=0.051)


@pytest.mark.parametrize("page", PAGES)
def test_the_errors_are_those_of_the_code(page):
    """Each quoted error, split where values are filled in, is in the source."""
    source = "\n".join(p.read_text() for p in sorted((ROOT / "src").rglob("*.py")))
    source = re.sub(r'"\s*\n\s*f?"', "", source).lower()  # one literal on several lines
    tables = re.findall(
        r"\| (?:the sentence begins|warning) \|.*?\n\n", page_text(page) + "\n", re.S
    )
    assert tables
    for table in tables:
        for line in table.strip().splitlines()[2:]:
            sentence = line.split("|")[1].strip().removesuffix("(a warning)")
            for part in re.split(r"…|: |=", sentence):
                part = re.sub(r"^\W+|\W+$", "", part).lower()
                assert part in source, f"no error says '{part}': {sentence}"
