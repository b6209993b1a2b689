"""`electra finetune` as a user has it: what is printed, and one sentence for each mistake."""

import json
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import yaml

from electra.cli.finetune import read_seeds
from electra.errors import UserError
from electra.finetune.settings import FinetuneConfig

QUICK = ("lr=3e-3", "layer_decay=1", "epochs=0.1", "batch_size=24", "warmup=0", "device=cpu")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_finetune_command(electra, model_folder, reviews, tmp_path):
    out = tmp_path / "[tuned]"  # no markup
    command = ("finetune", model_folder, "classify", *QUICK, "--data", reviews, "--out", out)
    code, shown, err = electra(*command, "--seeds", 1)
    assert code == 0, err
    assert "(one seed)" in shown
    code, shown, err = electra(*command, "--seeds", 2)
    assert code == 0, err
    assert f"{reviews.name} accuracy" in shown
    assert "(median of 2," in shown
    assert f"Model of the best seed: {out / 'model'}" in shown
    assert {p.name for p in out.iterdir()} == {"results.jsonl", "predictions", "model", "process"}
    code, shown, err = electra(*command, "--seeds", "7,1", "--json")
    assert code == 0, err
    assert [json.loads(line)["seed"] for line in shown.splitlines()] == [1, 7]
    assert "already done: seed 1" in err


def test_training_continues_with_a_closed_standard_output(unread, model_folder, reviews, tmp_path):
    out = tmp_path / "out"
    command = ("finetune", model_folder, "classify", *QUICK, "--data", reviews, "--out", out)
    assert unread(*command, "--seeds", 1) == 0
    assert unread(*command, "--seeds", 2) == 0  # tells of the seed that was done before
    assert len((out / "results.jsonl").read_text().splitlines()) == 2
    assert (out / "model").is_dir()


def test_keyboard_interrupt(electra, model_folder, reviews, tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("electra.finetune.run.finetune", stopped)
    command = ("finetune", model_folder, "classify", "--data", reviews, "--out", tmp_path / "out")
    code, _, err = electra(*command)
    assert code == 130
    assert err.endswith("Run the same command again to continue.\nerror: stopped.\n")


def test_columns_by_name(electra, model_folder, tmp_path):
    rows = [f"{i},{w} bread,{w} cargo,{s}" for i, w in enumerate(("old", "young")) for s in "ab"]
    for split in ("train", "dev"):
        lines = ["n,first,second,kind", *rows * 4]
        (tmp_path / f"{split}.csv").write_text("\n".join(lines) + "\n")
    columns = ("--text", "first", "--pair", "second", "--label", "kind")
    given = ("--data", tmp_path, "--out", tmp_path / "out", "--seeds", 1)
    code, shown, err = electra(
        *(
            "finetune",
            model_folder,
            "pair",
            "epochs=1",
            "batch_size=4",
            "device=cpu",
            *columns,
            *given,
        )
    )
    assert code == 0, err
    card = json.loads((tmp_path / "out" / "model" / "task.json").read_text())
    assert card["columns"] == {"text": "first", "pair": "second", "label": "kind"}
    assert "16 of the 16 rows" in err  # the warning of what train and dev share
    assert shown


def test_failed_seeds_are_named(electra, model_folder, reviews, tmp_path, monkeypatch):
    monkeypatch.setattr("electra.finetune.kinds.classify.Classify.failed", lambda *given: True)
    command = ("finetune", model_folder, "classify", *QUICK, "--data", reviews)
    code, shown, err = electra(*command, "--out", tmp_path / "out", "--seeds", "3,5")
    assert code == 0, err
    assert "learned nothing: seed 3, 5" in shown
    assert "try a lower lr or more epochs" in err


def test_one_seed_that_learned_is_no_reason_for_advice(
    electra, model_folder, reviews, tmp_path, monkeypatch
):
    answers = iter([True, False])
    monkeypatch.setattr(
        "electra.finetune.kinds.classify.Classify.failed", lambda *given: next(answers)
    )
    command = ("finetune", model_folder, "classify", *QUICK, "--data", reviews)
    code, shown, err = electra(*command, "--out", tmp_path / "out", "--seeds", "3,5")
    assert code == 0, err
    assert "learned nothing: seed 3" in shown
    assert "more epochs" not in err


def test_divergence_is_an_error(refused, model_folder, reviews, tmp_path):
    command = ("finetune", model_folder, "classify", "lr=1e9", "epochs=1", "device=cpu")
    sentence = refused(*command, "--data", reviews, "--out", tmp_path / "out", "--seeds", "2")
    assert "Training diverged for every seed" in sentence
    assert "lower lr (it was 1e+09)" in sentence
    assert not (tmp_path / "out" / "model").exists()


def write(folder: Path, **files: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.csv").write_text(content)


GOOD = "text,label\nthe old bread,bread\na cargo,cargo\n"
OTHER = "text,label\nmore bread,bread\na proud cargo,cargo\n"
AWAY = "mps" if torch.cuda.is_available() else "cuda"
FILES = {
    "good": {"train": GOOD, "dev": OTHER},
    "columns": {"train": "review,stars\nthe old bread,5\na cargo,1\n"},
    "strange": {"train": GOOD, "dev": "text,label\nthe old bread,copper\n"},
    "single": {"train": "text,label\nthe old bread,bread\na cargo,bread\n"},
    "blank": {"train": "text,label\n ,bread\n ,cargo\n"},
    "unlabelled": {"train": "text,label\nthe old bread,bread\na cargo,\n"},
    "ragged": {"train": "text,label\nthe old bread,bread,x\n"},
    "headers": {"train": "text,label\n"},
    "void": {"train": ""},
    "noTrain": {"dev": GOOD},
}


@pytest.mark.parametrize(
    ("task", "data", "more", "message"),
    [
        ("clasify", "good", (), "did you mean 'classify'?"),
        ("nonsense", "good", (), "There is no task 'nonsense': there are: "),
        ("runs/First", "good", (), "There is no task 'runs/First': there are: "),
        ("classify", "nowhere", (), "There is no file or folder"),
        ("classify", "columns", (), "it has: review, stars. Name it with --label."),
        ("classify", "columns", ("--text", "review"), "review, stars. Name it with --label."),
        ("classify", "good", ("--label", "lable"), "no column 'lable', it has: text, label"),
        ("classify", "good", ("--label", "labl"), "did you mean 'label'?"),
        ("classify", "strange", (), "line 2: no row of the train file has the label 'copper'"),
        ("classify", "single", (), "has the same label 'bread' in all rows"),
        ("classify", "blank", (), "has no row with a text in the column 'text'"),
        ("classify", "unlabelled", (), "line 3 has no label in the column 'label'"),
        ("classify", "ragged", (), "line 2 has 3 cells where the header has 2"),
        ("classify", "headers", (), "has no rows"),
        ("classify", "void", (), "is empty"),
        ("classify", "noTrain", (), "holds no train file"),
        ("regress", "good", (), "is not a number: regress needs one"),
        ("cola", "good", ("--text", "text"), "--text is for your own files"),
        ("cola", "good", (), "holds no train file of cola"),
        ("squad1", "nowhere", (), "There is no file or folder"),
        ("conll2003", "nowhere", (), "There is no file or folder"),
        ("classify", "good", ("lrr=1",), "There is no setting 'lrr': did you mean 'lr'?"),
        ("classify", "good", ("lr",), "'lr' is not a setting: write it as key=value."),
        ("classify", "good", ("lr=fast",), "'lr' takes a number, not 'fast'."),
        ("classify", "good", ("head=deep",), "'head' must be one of paper, transformers"),
        ("classify", "good", ("batch_size=0",), "batch_size must be at least 1"),
        ("classify", "good", ("lr=-1",), "lr must be a finite number of at least 0"),
        ("classify", "good", ("epochs=0.1",), "are less than one step"),
        ("classify", "good", ("length=2",), "length"),
        ("classify", "good", (f"device={AWAY}",), "There is no '"),
        ("classify", "good", ("--seeds", "0"), "--seeds 0: give a number"),
        ("classify", "good", ("--seeds", "-3"), "--seeds -3: give a number"),
        ("classify", "good", ("--seeds", "1,1"), "--seeds 1,1: give a number"),
        ("classify", "good", ("--seeds", "2,-1"), "--seeds 2,-1: give a number"),
        ("classify", "good", ("--seeds", "many"), "--seeds many: give a number"),
        ("classify", "good", ("--seeds", f"1,{2**70}"), "--seeds"),
        ("classify", "good", ("--seeds", f"{2**70}"), "up to 1000"),
        ("classify", "good", ("dropout=nan",), "'dropout' takes a number, not 'nan'."),
    ],
)
def test_errors_are_one_sentence_and_write_nothing(
    task, data, more, message, refused, model_folder, tmp_path
):
    for name, files in FILES.items():
        write(tmp_path / name, **files)
    out = tmp_path / "out"
    sentence = refused(
        *("finetune", model_folder, task, *more, "--data", tmp_path / data, "--out", out)
    )
    assert message in sentence
    assert not out.exists()


def test_device_error_names_the_setting(refused, model_folder, reviews, tmp_path):
    given = ("--data", reviews, "--out", tmp_path / "out")
    sentence = refused("finetune", model_folder, "classify", f"device={AWAY}", *given)
    assert "train.device" not in sentence  # which belongs to another command


@pytest.mark.parametrize("model", ["nothing", "empty", "words", "bert", "half"])
def test_wrong_models(model, refused, model_folder, reviews, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "words").write_text("text")
    for name in ("bert", "half"):
        shutil.copytree(model_folder, tmp_path / name)
    config = json.loads((model_folder / "config.json").read_text())
    (tmp_path / "bert" / "config.json").write_text(json.dumps(config | {"model_type": "bert"}))
    weights = tmp_path / "half" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    sentence = refused(
        *("finetune", tmp_path / model, "classify", "--data", reviews, "--out", tmp_path / "out")
    )
    assert model in sentence
    assert not (tmp_path / "out").exists()


def test_other_results_are_not_changed(electra, refused, model_folder, reviews, tmp_path):
    out = tmp_path / "out"
    command = ("finetune", model_folder, "classify", "--data", reviews, "--out", out, *QUICK)
    assert electra(*command, "--seeds", 1)[0] == 0
    before = contents(out)
    assert "results with head=paper, not transformers" in refused(*command, "head=transformers")
    write(tmp_path / "good", **FILES["good"])
    other = (*command[:4], tmp_path / "good", *command[5:])
    assert f"{out} holds results of another" in refused(*other)
    assert contents(out) == before


def test_out_is_a_file(refused, model_folder, reviews, tmp_path):
    (tmp_path / "out").write_text("mine")
    command = ("finetune", model_folder, "classify", "--data", reviews, *QUICK)
    assert str(tmp_path / "out") in refused(*command, "--out", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_out_below_a_file(refused, model_folder, reviews, tmp_path):
    (tmp_path / "mine").write_text("mine")
    command = ("finetune", model_folder, "classify", "--data", reviews, *QUICK)
    assert str(tmp_path / "mine") in refused(*command, "--out", tmp_path / "mine" / "out")


def test_names_are_not_markup(electra, model_folder, reviews, tmp_path):
    """Square brackets mean colours to the library that prints."""
    data = tmp_path / "[red]"
    shutil.copytree(reviews, data)
    command = ("finetune", model_folder, "classify", "--data", data, "--out", tmp_path / "out")
    for seeds in (1, 2):
        code, shown, err = electra(*command, *QUICK, "--seeds", seeds)
        assert code == 0, err
        assert "[red]" in shown
    assert "[red]: already done: seed 0" in err


def test_read_seeds():
    assert read_seeds("5") == [0, 1, 2, 3, 4]
    assert read_seeds("1") == [0]
    assert read_seeds("3,7") == [3, 7]
    assert read_seeds("7, 3") == [7, 3]
    assert read_seeds("0,3") == [0, 3]
    assert read_seeds("5,") == [5]
    for wrong in ("", ",", "5,,", "1.5", "0", "-1", "4,4", "0,-2", "99999999999", "1,2147483648"):
        with pytest.raises(UserError, match=r"--seeds .*: give a number"):
            read_seeds(wrong)
    with pytest.raises(UserError, match="--tuning-seeds 0: give a number"):
        read_seeds("0", "--tuning-seeds")


@pytest.mark.parametrize("verb", ["finetune", "glue"])
def test_settings_option(verb, electra):
    code, out, _ = electra(verb, "--settings")
    assert code == 0
    values = yaml.safe_load(out)
    assert values == {f.name: f.default for f in fields(FinetuneConfig)}
    assert "# Peak learning rate; 0 takes the paper's for the model size" in out
    lines = out.splitlines()
    for field in fields(FinetuneConfig):
        place = next(n for n, line in enumerate(lines) if line.startswith(f"{field.name}:"))
        assert lines[place - 1].startswith("# "), field.name


@pytest.mark.parametrize("verb", ["finetune", "glue", "predict", "probe"])
def test_help_has_an_example(verb, electra):
    code, out, _ = electra(verb, "--help")
    assert code == 0
    assert f"Example: electra {verb}" in " ".join(out.split())


def test_help_imports_little():
    """No torch and no transformers to say how a command is used."""
    code = (
        "import sys; sys.argv = ['electra', 'finetune', '--help']\n"
        "from electra.cli import run_app\n"
        "code = run_app()\n"
        "heavy = {'torch', 'transformers', 'numpy', 'tokenizers'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy or code else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--seeds" in done.stdout


def test_installed_program(tmp_path, reviews):
    """In a process of its own: the sentence, the code, and no folder."""
    out = tmp_path / "out"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "electra", "finetune", str(tmp_path / "none"), "classify"),
            *("--data", str(reviews), "--out", str(out)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: There is no model at ")
    assert done.stderr.count("\n") == 1
    assert not out.exists()


def test_out_with_other_files_is_refused(refused, model_folder, tmp_path):
    """Above all one with a `model` of the user's own, which the best seed's would replace."""
    write(tmp_path / "good", **FILES["good"])
    theirs = tmp_path / "project" / "model" / "model.safetensors"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("weights")
    out = ("--data", tmp_path / "good", "--out", tmp_path / "project")
    sentence = refused("finetune", model_folder, "classify", *out)
    assert "is not empty and holds no results of fine-tuning: choose another --out" in sentence
    assert [p for p in (tmp_path / "project").rglob("*") if p.is_file()] == [theirs]
    assert theirs.read_text() == "weights"
