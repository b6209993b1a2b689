"""benchmarks/stranger.py: its loop is that of transformers.Trainer, and it continues."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from electra.jsonl import read_jsonl

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "stranger.py"


@pytest.fixture(scope="module")
def stranger():
    spec = importlib.util.spec_from_file_location("stranger", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["stranger"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["stranger"]


@pytest.fixture
def glue(tmp_path):
    """CoLA: is the farmer in the text? STS-B: how many times?"""
    rng = np.random.default_rng(0)
    words = ("the", "old", "sailor", "bread", "oven", "went")
    for split, count in (("train", 160), ("dev", 40)):
        cola, stsb = [], ["index\tsentence1\tsentence2\tscore"]
        for number in range(count):
            text = list(rng.choice(words, rng.integers(2, 9)))
            label = int(rng.integers(2))
            text += ["farmer"] * label
            cola.append(f"x\t{label}\t\t{' '.join(text)}")
            stsb.append(f"{number}\t{' '.join(text)}\tthe farmer\t{label * 4 + 0.5}")
        for name, lines in (("CoLA", cola), ("STS-B", stsb)):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def run(stranger, glue, model_folder, monkeypatch, capsys):
    """Run the script on the two tasks; returns its results and what it prints."""

    def call(*options: str) -> tuple[list[dict], list[dict]]:
        out = glue / "out.jsonl"
        arguments = [model_folder, "--data", glue, "--out", out, "--lr", "3e-3", *options]
        monkeypatch.setattr(sys, "argv", ["stranger.py", *map(str, arguments)])
        capsys.readouterr()
        stranger.main()
        printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return read_jsonl(out), printed

    return call


def test_scores_and_medians(run):
    options = ("--tasks", "CoLA,stsb", "--epochs", "8", "--batch-size", "8")
    results, printed = run(*options, "--seeds", "1")
    assert [(r["task"], r["metric"]) for r in results] == [
        ("cola", "matthews"),
        ("stsb", "spearman"),
    ]
    for result in results:
        assert result["score"] == result[result["metric"]]
        assert len(result["by_epoch"]) == 8
        assert result["score"] > 0.5  # 0 by chance
    assert [row["median"] for row in printed[:2]] == [r["score"] for r in results]
    assert printed[2]["mean_of_medians"] == pytest.approx(sum(r["score"] for r in results) / 2)


def test_the_same_command_continues(run):
    options = ("--tasks", "cola,stsb", "--epochs", "1", "--rows", "16")
    results, _ = run(*options, "--seeds", "1")
    more, printed = run(*options, "--seeds", "2")
    assert more[:2] == results  # not trained again
    assert [(r["task"], r["seed"]) for r in more[2:]] == [("cola", 1), ("stsb", 1)]
    assert [row["seeds"] for row in printed[:2]] == [2, 2]
    other, printed = run("--tasks", "cola", "--epochs", "2", "--rows", "16", "--seeds", "1")
    assert len(other) == 5  # other settings, another result
    assert printed[0]["seeds"] == 1


def test_the_precision_asked_for(stranger, run, monkeypatch):
    found = []
    autocast = stranger.autocast
    monkeypatch.setattr(
        stranger, "autocast", lambda *given: [found.append(given[1]), autocast(*given)][1]
    )
    options = ("--tasks", "cola", "--epochs", "1", "--rows", "16", "--seeds", "1")
    run(*options, "--precision", "fp32")
    assert set(found) == {torch.float32}
    found.clear()
    results, _ = run(*options, "--precision", "bf16")
    assert set(found) == {torch.bfloat16}  # trained again, in the other precision
    assert [result["settings"]["precision"] for result in results] == ["fp32", "bf16"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seeds", "0"), "--seeds must be at least 1"),
        (("--batch-size", "-8"), "--batch-size must be at least 1"),
        (("--rows", "-1"), "--rows must be at least 0"),
        (("--lr", "nan"), "--lr"),
    ],
)
def test_wrong_options_are_refused(run, capsys, options, message):
    with pytest.raises(SystemExit) as stopped:
        run(*options)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_an_error_is_one_sentence(glue, model_folder):
    command = [SCRIPT, model_folder, "--data", glue / "nowhere", "--out", glue / "out.jsonl"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(r"error: There is no folder '.*nowhere': .*\n", done.stderr)


@pytest.mark.parametrize("task", ["cola", "stsb"])
def test_the_loop_is_that_of_the_trainer(stranger, glue, model_folder, task, monkeypatch):
    """Same head, order and settings without dropout: the same predictions after training."""
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    from torch.utils.data import SequentialSampler
    from transformers import (
        AutoTokenizer,
        DataCollatorWithPadding,
        ElectraForSequenceClassification,
        Trainer,
        TrainingArguments,
    )

    folder = glue / "model"
    folder.mkdir()
    for path in model_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))

    class InOrder(Trainer):
        def _get_train_sampler(self, *_):
            return SequentialSampler(self.train_dataset)

    job = stranger.Job(
        task=task,
        seed=3,
        model=str(folder),
        data=glue,
        lr=1e-3,
        epochs=1,
        batch_size=8,
        warmup=0.0,
        max_length=32,
        rows=0,
        precision="auto",
        threads=1,
    )
    found = []
    monkeypatch.setattr(stranger, "score_sentences", lambda *_: {"matthews": 0.0, "spearman": 0.0})
    predict = stranger.predict
    monkeypatch.setattr(
        stranger, "predict", lambda n, *rest: [found.append(n), predict(n, *rest)][1]
    )
    stranger.train(job)
    ours = found[0].eval()

    loaded = stranger.load_glue(task, glue)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    examples = loaded.splits["train"]
    order = np.random.default_rng((3, 0)).permutation(len(examples))
    texts = [(e.text,) if e.pair is None else (e.text, e.pair) for e in examples]
    rows = [
        dict(tokenizer(*texts[i], truncation=True, max_length=32), labels=examples[i].label)
        for i in order
    ]
    torch.manual_seed(3)
    network = ElectraForSequenceClassification.from_pretrained(
        folder, num_labels=max(1, len(loaded.labels))
    )
    trainer = InOrder(
        model=network,
        args=TrainingArguments(
            output_dir=str(glue / "trainer"),
            per_device_train_batch_size=8,
            num_train_epochs=1,
            learning_rate=1e-3,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=rows,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    trainer.train()
    theirs = dict(network.named_parameters())
    start = ElectraForSequenceClassification.from_pretrained(folder)
    moved = 0.0
    for name, parameter in ours.named_parameters():
        if not name.endswith("key.bias"):  # has no gradient but rounding, which Adam scales up
            torch.testing.assert_close(parameter, theirs[name], atol=2e-5, rtol=1e-4)
        if name.startswith("electra."):
            moved += (parameter - start.get_parameter(name)).norm().item()
    assert moved > 0.1


def test_the_schedule_is_that_of_transformers(stranger):
    from transformers import get_linear_schedule_with_warmup

    for warmup in (0.0, 0.1):
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        schedule = get_linear_schedule_with_warmup(optimizer, round(warmup * 40), 40)
        for step in range(40):
            factor = stranger.learning_rate_factor(step, 40, warmup)
            assert factor == pytest.approx(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
