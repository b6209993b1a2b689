"""The command line as a user has it: what is printed, exit codes, one sentence for each mistake."""

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest

from electra import cli
from electra.config import from_yaml, override
from electra.errors import UserError
from electra.finetune.settings import FinetuneConfig
from electra.recipes import RECIPES
from electra.text.prepare import prepare
from electra.text.shards import Shards
from electra.text.tokenizer import special_names, train_tokenizer
from electra.train import checkpoint
from electra.train.settings import PretrainConfig

QUICK = (
    "model.hidden=32",
    "model.embedding=16",
    "data.seq_length=32",
    "data.batch_size=8",
    "train.device=cpu",
    "train.report_every=5",
    "train.validate_every=10",
    "train.validate_rows=16",
)
"""The toy recipe in a second."""


@pytest.fixture(scope="module")
def other_data(tmp_path_factory) -> Path:
    """Shards of another tokenizer."""
    folder = tmp_path_factory.mktemp("other")
    text = folder / "text.txt"
    text.write_text("\n\n".join(f"zebra {i} yak {i % 7} xenon" for i in range(400)))
    train_tokenizer([text], folder / "tokenizer", vocab_size=64)
    prepare(
        [text],
        tokenizer=folder / "tokenizer",
        out=folder / "shards",
        length=32,
        workers=1,
        held_out=0.1,
    )
    return folder / "shards"


def test_from_text_to_answers(electra, corpus, tmp_path):
    tokenizer, shards, run = (tmp_path / name for name in ("tokenizer", "shards", "[run]"))
    code, _, err = electra("tokenizer", "train", corpus, "--out", tokenizer, "--vocab-size", 150)
    assert code == 0, err
    code, _, err = electra(
        *("prepare", corpus, "--tokenizer", tokenizer, "--out", shards),
        *("--length", 32, "--workers", 1, "--held-out", 0.1),
    )
    assert code == 0, err
    code, out, err = electra(
        *("pretrain", "toy", "--data", shards, "--out", run, "--budget", "20steps", *QUICK)
    )
    assert code == 0, err
    assert f"The model is in {run}/checkpoints/step-00000020" in out
    assert "Starting at step 0 on cpu in float32" in out

    code, out, _ = electra("evaluate", run, "--data", shards, "--rows", 32)
    assert code == 0
    assert "discriminator AUC" in out
    assert "[run]/checkpoints/step-00000020,held-outtext" in "".join(out.split())
    code, out, _ = electra("evaluate", run, "--data", shards, "--rows", 32, "--json")
    assert code == 0
    figures = json.loads(out)
    assert 0 < figures["auc"] < 1
    assert figures["checkpoint"] == str(run / "checkpoints" / "step-00000020")

    code, out, _ = electra("detect", run, "the old farmer went to the oven .")
    assert code == 0
    assert out.splitlines()[0] == "the old farmer went to the oven ."
    lines = out.splitlines()[1:]
    code, out, _ = electra("detect", run, "the old farmer went to the oven .", "--json")
    assert [v["token"] for v in json.loads(out)] == [line.split()[1] for line in lines]

    code, out, _ = electra("fill", run, "the [MASK] farmer went to the [MASK] .", "--top", 3)
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("[MASK]")] == [
        "[MASK] 1",
        "[MASK] 2",
    ]
    assert len(out.splitlines()) == 2 * (1 + 3)
    code, out, _ = electra("fill", run, "the [MASK] .", "--json")
    assert [len(g) for g in json.loads(out)] == [5]

    code, out, _ = electra("report", run)
    assert code == 0
    assert out.splitlines() == [str(run / "report.png"), str(run / "report.html")]
    assert all(Path(line).stat().st_size > 1000 for line in out.splitlines())

    code, out, _ = electra("pretrain", "--resume", "--out", run)
    assert code == 0
    assert "Resuming at step 20" in out


def test_evaluate_agrees_with_the_run(electra, finished, data_folder):
    """The same rows, masks and weights as in the run's last look."""
    last = checkpoint.checkpoints(finished)[-1]
    for place in (finished, last):
        _, out, _ = electra("evaluate", place, "--data", data_folder, "--rows", 16, "--json")
        figures = json.loads(out)
        assert figures.pop("checkpoint") == str(last)
        assert figures == pytest.approx(checkpoint.read_state(last).held_out)


def test_what_is_no_number_is_null_in_json(electra, finished, data_folder, monkeypatch):
    """One held-out row may have no replaced token, and then there is no AUC."""
    found = (finished, {"auc": float("nan"), "loss": 1.0})
    monkeypatch.setattr("electra.train.evaluate.evaluate", lambda *asked: found)
    _, out, _ = electra("evaluate", finished, "--data", data_folder, "--json")
    assert "NaN" not in out
    assert json.loads(out)["auc"] is None


@pytest.mark.parametrize(
    ("chosen", "policy"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "active")]
)
def test_idle_threads_sleep_unless_the_user_decides(chosen, policy, tmp_path):
    """Set before torch is imported, because its OpenMP library reads it then."""
    code = (
        "import os, sys; from electra import cli\n"
        "cli.run_app = lambda: print(os.environ.get('OMP_WAIT_POLICY'), 'torch' in sys.modules)\n"
        "cli.main()"
    )
    variables = {k: v for k, v in os.environ.items() if k not in cli.WAIT_POLICY}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables | chosen, capture_output=True, text=True
    )
    assert done.stdout.split() == [policy, "False"]


def test_a_polite_stop_is_no_error(electra, finished, monkeypatch):
    monkeypatch.setattr("electra.train.pretrain.resume", lambda *_, **__: 130)
    code, _, err = electra("pretrain", "--resume", "--out", finished)
    assert (code, err) == (130, "")


def test_a_start_without_room_leaves_nothing(refused, data_folder, tmp_path, monkeypatch):
    """So that the same command works when there is some again."""

    def full(source: Path, to: Path) -> None:
        (to / "half").mkdir(parents=True)
        raise shutil.Error([(source, to, "[Errno 28] No space left on device")])

    monkeypatch.setattr("electra.train.pretrain.shutil.copytree", full)
    out = tmp_path / "out"
    assert "disk is full" in refused("pretrain", "toy", "--data", data_folder, "--out", out, *QUICK)
    assert not out.exists()


def test_the_tokenizer_beside_the_shards_is_theirs(refused, data_folder, other_data, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(data_folder, data)
    shutil.copytree(other_data / "tokenizer", data / "tokenizer", dirs_exist_ok=True)
    sentence = refused("pretrain", "toy", "--data", data, "--out", tmp_path / "out", *QUICK)
    assert "is not the tokenizer" in sentence
    assert not (tmp_path / "out").exists()


def test_the_program_itself(tmp_path):
    """In a process of its own, by `python -m electra`."""
    done = subprocess.run(
        [sys.executable, "-m", "electra", "pretrain", "toy", "--out", str(tmp_path / "x")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: Name the prepared text with --data")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_a_letter_ends_nothing(encoding, finished, data_folder, tmp_path):
    run = tmp_path / "東京"
    shutil.copytree(finished, run)
    done = subprocess.run(
        [sys.executable, "-m", "electra", "pretrain", "--resume", "--out", str(run)],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u6771\u4eac/checkpoints" in done.stdout


def test_recipes(electra):
    code, out, _ = electra("recipes")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(RECIPES)
    code, out, _ = electra("recipes", "paper.base", "optim.lr=1e-3")
    assert code == 0
    shown = from_yaml(PretrainConfig, out, "the output")
    assert shown.model.hidden == 768
    assert shown.optim.lr == 1e-3
    assert "# Peak learning rate." in out


def test_a_printed_recipe_can_be_trained(electra, data_folder, tmp_path):
    _, out, _ = electra("recipes", "toy", *QUICK)
    (tmp_path / "mine.yaml").write_text(out)
    code, _, err = electra(
        *("pretrain", tmp_path / "mine.yaml", "--data", data_folder),
        *("--out", tmp_path / "run", "--budget", "2steps"),
    )
    assert code == 0, err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("recipes", "paper.smal"), "did you mean 'paper.small'?"),
        (("recipes", "toy", "optim.learning=3"), "no setting 'optim.learning'"),
        (("recipes", "none.yaml"), "none.yaml cannot be read"),
        (("pretrain", "--out", "{out}"), "Name a recipe"),
        (("pretrain", "toyy", "--data", "{data}", "--out", "{out}"), "did you mean 'toy'?"),
        (("pretrain", "toy", "--out", "{out}"), "--data"),
        (("pretrain", "optim.lr=1", "--data", "{data}", "--out", "{out}"), "name a recipe first"),
        (
            ("pretrain", "toy", "--data", "{data}", "--out", "{out}", "optim.lrr=1"),
            "did you mean 'optim.lr'?",
        ),
        (("pretrain", "toy", "--data", "{data}", "--out", "{out}", "lr=1"), "'optim.lr'?"),
        (("pretrain", "toy", "--data", "{data}", "--out", "{out}", "optim.lr=fast"), "a number"),
        (("pretrain", "toy", "--data", "{data}", "--out", "{out}", "speed"), "key=value"),
        (("pretrain", "toy", "--data", "none", "--out", "{out}"), "not a folder of token shards"),
        (
            ("pretrain", "toy", "--data", "{data}", "--out", "{out}", "--budget", "soon"),
            "not a budget",
        ),
        (
            ("pretrain", "toy", "--data", "{data}", "--out", "{out}"),
            "rows of 32 tokens and the recipe expects 64",
        ),
        (
            (
                *("pretrain", "toy", "--data", "{data}", "--out", "{out}"),
                *("data.seq_length=32", "model.max_positions=16"),
            ),
            "do not fit a position table of 16",
        ),
        (
            ("pretrain", "toy", "--data", "{data}", "--out", "{out}", "train.grad_accumulation=3"),
            "set train.grad_accumulation to 1, 2, 4",
        ),
        (
            ("pretrain", "toy", "--data", "{data}", "--out", "{out}", "data.batch_size=0"),
            "data.batch_size must be at least 1",
        ),
        (
            (
                *("pretrain", "toy", "--data", "{data}", "--out", "{out}", "data.seq_length=32"),
                "model.vocab_size=9",
            ),
            "leave model.vocab_size at 0",
        ),
        (
            (
                *("pretrain", "toy", "--data", "{data}", "--out", "{out}", "data.seq_length=32"),
                *("generator.tie=all",),
            ),
            "generator.width=1",
        ),
        (("pretrain", "toy", "--data", "{data}", "--out", "{file}"), "is a file"),
        (("pretrain", "toy", "--data", "{data}", "--out", "{out}", "--budget", ""), "not a budget"),
        (
            ("pretrain", "toy", "--data", "{data}", "--out", "{file}/run", "data.seq_length=32"),
            "run' cannot be used: Not a directory",
        ),
        (("pretrain", "--resume", "--out", "{out}"), "holds no run"),
        (("evaluate", "{out}", "--data", "{data}"), "neither a run with a checkpoint"),
        (("evaluate", "{run}", "--data", "{out}"), "not a folder of token shards"),
        (("detect", "{out}", "text"), "no model at"),
        (("detect", "{run}", ""), "text is empty"),
        (("fill", "{run}", "no mask"), "no [MASK] in the text"),
        (("detect", "{run}", "\udcff"), "not valid UTF-8"),
        (("pretrain", "toy", "--data", "{data}", "--out", "{out}\udcff"), "not valid UTF-8"),
        (("fill", "{run}", "\udcff [MASK]"), "not valid UTF-8"),
        (("report", "{out}"), "is not the folder of a run"),
        (("report", "{run}", "--out", "{file}"), "cannot be used: File exists"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    arguments, message, refused, data_folder, finished, corpus, tmp_path
):
    names = {"out": tmp_path / "out", "data": data_folder, "run": finished, "file": corpus}
    assert message in refused(*(argument.format(**names) for argument in arguments))
    assert not (tmp_path / "out").exists()  # nothing was begun


@pytest.mark.parametrize(
    "settings",
    [
        ("objective.kind=mlm", "generator.tie=all"),
        ("objective.kind=mlm", "model.hidden=66", "model.heads=3"),  # no half of it has whole heads
        ("generator.kind=unigram", "model.hidden=66", "model.heads=3"),
    ],
)
def test_a_generator_that_is_not_built_is_not_refused(electra, settings, data_folder, tmp_path):
    """Neither where a run is counted nor where it is started."""
    code, _, err = electra("flops", "toy", *settings)
    assert code == 0, err
    place = ("--data", data_folder, "--out", tmp_path / "run", "--budget", "1steps")
    code, _, err = electra("pretrain", "toy", *QUICK, *settings, *place)
    assert code == 0, err


def test_nothing_to_measure_is_wrong_usage(electra, finished, data_folder):
    code, out, err = electra("evaluate", finished, "--data", data_folder, "--rows", 0)
    assert code == 2
    assert "--rows" in err
    assert "Traceback" not in err + out


def test_a_device_that_is_not_here(refused, data_folder, tmp_path):
    import torch

    absent = "mps" if not torch.backends.mps.is_available() else "cuda"
    sentence = refused(
        *("pretrain", "toy", "--data", data_folder, "--out", tmp_path / "out"),
        *(*QUICK, f"train.device={absent}"),
    )
    assert f"no '{absent}' device" in sentence
    assert not (tmp_path / "out").exists()


def test_a_run_is_not_overwritten(refused, finished, data_folder, tmp_path):
    command = ("pretrain", "toy", "--data", data_folder, *QUICK, "--out")
    assert "already holds a run: add --resume" in refused(*command, finished)
    (tmp_path / "letter.txt").write_text("dear")
    assert "not empty and holds no run" in refused(*command, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_resume_takes_no_settings(refused, finished):
    for change in (("toy", "optim.lr=1"), ("--budget", "5steps")):
        assert "keeps its settings" in refused("pretrain", "--resume", "--out", finished, *change)


def test_resume_starts_a_run_where_there_is_none(electra, data_folder, tmp_path):
    """So that a job that is started again and again needs one command only."""
    command = (
        *("pretrain", "toy", "--resume", "--data", data_folder, "--out", tmp_path / "run"),
        *QUICK,
    )
    code, out, err = electra(*command, "train.budget=2steps")
    assert code == 0, err
    assert "Starting at step 0" in out
    code, out, err = electra(*command, "train.budget=2steps")  # the very same line goes on
    assert code == 0, err
    assert "Resuming at step 2" in out


def test_a_run_goes_on_only_with_its_own_data(refused, finished, other_data):
    sentence = refused("pretrain", "--resume", "--out", finished, "--data", other_data)
    assert "prepared with another tokenizer than the run" in sentence


def test_evaluate_refuses_the_shards_of_another_tokenizer(refused, finished, other_data):
    sentence = refused("evaluate", finished, "--data", other_data)
    assert "prepared with another tokenizer" in sentence
    assert "--tokenizer" in sentence


@pytest.mark.parametrize("damage", ["cut", "altered", "missing"])
def test_a_damaged_shard_is_found_at_the_start(damage, refused, data_folder, tmp_path):
    """Also one flipped byte, which only its hash can show."""
    data = tmp_path / "data"
    shutil.copytree(data_folder, data)
    shard = data / Shards.open(data).shards[0].file
    whole = bytearray(shard.read_bytes())
    if damage == "cut":
        shard.write_bytes(whole[:-50])
    elif damage == "altered":
        whole[len(whole) // 2] ^= 1
        shard.write_bytes(whole)
    else:
        shard.unlink()
    sentence = refused("pretrain", "toy", "--data", data, "--out", tmp_path / "out", *QUICK)
    assert shard.name in sentence
    assert "electra prepare" in sentence
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_without_a_mask_is_refused(refused, corpus, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "farmer"]
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("\n".join(words))
    sentence = refused(
        *("prepare", corpus, "--tokenizer", tmp_path / "tokenizer"),
        *("--out", tmp_path / "out", "--length", 32),
    )
    assert "has no [MASK] token" in sentence
    assert not (tmp_path / "out").exists()


def test_an_edited_run_is_told(refused, finished, tmp_path):
    """Other settings than the checkpoint's; a configuration that is none."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    config = run / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("hidden: 32", "hidden: 64"))
    assert "has model.hidden=64" in refused("pretrain", "--resume", "--out", run)
    config.write_text(text.replace("hidden: 32", "hiden: 32"))
    assert "did you mean" in refused("pretrain", "--resume", "--out", run)
    config.write_text("[")
    assert "not valid YAML" in refused("pretrain", "--resume", "--out", run)


def test_the_data_of_a_run_is_gone(refused, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    config = run / "config.yaml"
    folder = read_folder(config)
    config.write_text(config.read_text().replace(folder, str(tmp_path / "moved")))
    sentence = refused("pretrain", "--resume", "--out", run)
    assert "is not a folder of token shards any more" in sentence
    assert "--data" in sentence


def read_folder(config: Path) -> str:
    return from_yaml(PretrainConfig, config.read_text(), "config.yaml").data.folder


def test_missing_extras_are_named(electra, refused, finished, data_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'electra[plot]'" in refused("report", finished)
    monkeypatch.setitem(sys.modules, "wandb", None)
    command = ("pretrain", "toy", "--data", data_folder, "--out", tmp_path / "out", *QUICK)
    sentence = refused(*command, "--budget", "2steps", "train.logger=wandb")
    assert "pip install 'electra[wandb]'" in sentence
    code, _, err = electra(*command, "--budget", "2steps")  # the folder is free for what is right
    assert code == 0, err


@pytest.mark.parametrize(
    "verb", ["demo", "recipes", "pretrain", "evaluate", "report", "detect", "fill"]
)
def test_help_has_an_example(verb, electra):
    code, out, _ = electra(verb, "--help")
    assert code == 0
    assert f"Example: electra {verb}" in " ".join(out.split())


def test_too_little_memory_is_told(refused, data_folder, tmp_path):
    out = tmp_path / "run"
    place = ("--data", data_folder, "--out", out)
    sentence = refused("pretrain", "toy", *QUICK, *place, "model.hidden=1000000000000")
    assert "out of memory" in sentence
    assert not out.exists()


@pytest.fixture
def arrived(electra, monkeypatch):
    """Run a command up to the function that does its work; returns what that is given, by name."""

    def run(target: str, *arguments: object) -> dict[str, object]:
        seen: dict[str, object] = {}
        signature = inspect.signature(resolve_name(target))

        def spy(*given, **named):
            seen.update(signature.bind(*given, **named).arguments)
            raise UserError("seen")

        with monkeypatch.context() as patch:
            patch.setattr(target, spy)
            code, _, err = electra(*arguments)
        assert (code, err) == (2, "error: seen\n")
        return seen

    return run


TUNED = override(FinetuneConfig(), ["lr=1e-3"])
ARRIVING = {
    "electra.text.prepare.prepare": (
        "prepare a b --tokenizer t --out o --length 64 --layout packed --workers 3 --held-out 0.25 "
        "--seed 7 --text-field body",
        {"inputs": ["a", "b"], "tokenizer": Path("t"), "out": Path("o"), "length": 64}
        | {"layout": "packed", "workers": 3, "held_out": 0.25, "seed": 7, "text_field": "body"},
    ),
    "electra.text.tokenizer.train_tokenizer": (
        "tokenizer train a b --out o --vocab-size 99 --kind bpe --cased --keep-accents "
        "--text-field body --overwrite",
        {"inputs": ["a", "b"], "out": Path("o"), "vocab_size": 99, "kind": "bpe", "cased": True}
        | {"keep_accents": True, "text_field": "body", "overwrite": True},
    ),
    "electra.demo.run.run_demo": (
        "demo --out o --budget 7steps",
        {"out": Path("o"), "budget": "7steps"},
    ),
    "electra.train.report.write_report": ("report r --out o", {"run": Path("r"), "out": Path("o")}),
    "electra.train.evaluate.evaluate": (
        "evaluate r --data d --rows 7",
        {"run": Path("r"), "data": Path("d"), "rows": 7},
    ),
    "electra.finetune.predict.predict": (
        "predict m a.txt --precision bf16",
        {"model": "m", "source": Path("a.txt"), "precision": "bf16"},
    ),
    "electra.tasks.load.load_task": (
        "finetune m pair --data d --out o --text a --pair b --label c",
        {"name": "pair", "data": Path("d"), "text": "a", "pair": "b", "label": "c"},
    ),
    "electra.finetune.glue.run_glue": (
        "glue m lr=1e-3 --data d --out o --seeds 3,7 --tasks cola,rte --from-mnli",
        {"model": "m", "data": Path("d"), "out": Path("o"), "seeds": [3, 7], "config": TUNED}
        | {"only": ["cola", "rte"], "from_mnli": True},
    ),
    "electra.studies.score.build_scorers": (
        "study objectives --data d --out o --glue g --tasks cola --task tag --task-data t "
        "--blimp b --blimp-pairs 5 --tuning-seeds 3,7 --tuning lr=1e-3",
        {"glue": Path("g"), "tasks": ["cola"], "task": "tag", "task_data": Path("t")}
        | {"blimp": Path("b"), "blimp_pairs": 5, "seeds": [3, 7], "config": TUNED},
    ),
}


@pytest.mark.parametrize("target", ARRIVING)
def test_every_option_arrives(target, arrived):
    command, expected = ARRIVING[target]
    seen = arrived(target, *command.split())
    assert {name: seen.get(name) for name in expected} == expected


def test_every_option_of_inspect_arrives(arrived, tokenizer_folder):
    command = ("tokenizer", "inspect", tokenizer_folder, "a", "b", "--megabytes", 0.5)
    target = "electra.text.inspect.inspect_tokenizer"
    seen = arrived(target, *command, "--text-field", "body")
    assert (seen["inputs"], seen["limit"], seen["text_field"]) == (["a", "b"], 500_000, "body")
    assert seen["names"] == special_names(tokenizer_folder)


def test_every_option_of_a_study_arrives(electra, monkeypatch):
    given = {}
    monkeypatch.setattr("electra.studies.score.build_scorers", lambda **_: [])
    monkeypatch.setattr(
        "electra.studies.run.run_study",
        lambda study, **named: given.update(named, study=study) or 3,
    )
    code, _, _ = electra(
        *(
            "study",
            "objectives",
            "data.batch_size=8",
            "--data",
            "d",
            "--out",
            "o",
            "--scale",
            "small",
        ),
        *("--budget", "7e9flops", "--seeds", "3,7", "--arms", "bert,ELECTRA"),
        *("--reuse", "x", "--reuse", "y"),
    )
    assert code == 3  # what the study returns
    study = given.pop("study")
    assert (study.scale.name, study.budget) == ("small", 7e9)
    assert [arm.name for arm in study.arms] == ["ELECTRA", "BERT"]
    expected = {
        "data": Path("d"),
        "out": Path("o"),
        "seeds": [3, 7],
        "overrides": ["data.batch_size=8"],
    }
    expected |= {"scorers": [], "reuse": [Path("x"), Path("y")]}
    assert {name: given[name] for name in expected} == expected
    assert given["command"].startswith("electra study objectives data.batch_size=8 --data d")
