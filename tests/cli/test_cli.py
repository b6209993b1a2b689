"""The command line: options, exit codes, one sentence for each mistake."""

import ast
import inspect
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

from electra import cli
from electra.config import override
from electra.errors import UserError
from electra.finetune.settings import FinetuneConfig
from electra.text.tokenizer import special_names

ROOT = Path(__file__).parents[2]


def test_ctrl_c_during_the_imports_has_no_traceback(tmp_path):
    """In the script that pip installs, and in `python -m electra`."""
    (tmp_path / "typer.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, function = settings["project"]["scripts"]["electra"].partition(":")
    script = f"from {module} import {function}; {function}()"
    path = os.pathsep.join([str(tmp_path), *sys.path])  # its typer comes first
    for start in (["-c", script], ["-m", "electra"]):
        done = subprocess.run(
            [sys.executable, *start, "--version"],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            # Ignored when the tests run in the background
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert (done.returncode, done.stderr) == (130, "error: stopped.\n")


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


def test_options_with_a_metavar_have_their_name_written_out():
    """typer 0.27 makes `--DATA` of an option whose metavar is DATA and whose name is implied."""
    implied = [
        f"{path.name}:{node.lineno}"
        for path in Path(cli.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "typer.Option"
        and any(keyword.arg == "metavar" for keyword in node.keywords)
        and not node.args
    ]
    assert not implied


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
            "is a file, and --out must be a folder",
        ),
        (("pretrain", "--resume", "--out", "{out}"), "holds no run"),
        (("evaluate", "{out}", "--data", "{data}"), "is missing: name the --out of"),
        (("evaluate", "{run}", "--data", "{out}"), "not a folder of token shards"),
        (("detect", "{out}", "text"), "no model at"),
        (("detect", "{run}", ""), "text is empty"),
        (("fill", "{run}", "no mask"), "no [MASK] in the text"),
        (("detect", "{run}", "\udcff"), "not valid UTF-8"),
        (("pretrain", "toy", "--data", "{data}", "--out", "{out}\udcff"), "not valid UTF-8"),
        (("fill", "{run}", "\udcff [MASK]"), "not valid UTF-8"),
        (("report", "{out}"), "is not the folder of a run"),
        (("report", "{run}", "--out", "{file}"), "give a folder; report.html is written into it"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    arguments, message, refused, data_folder, finished, corpus, tmp_path
):
    names = {"out": tmp_path / "out", "data": data_folder, "run": finished, "file": corpus}
    assert message in refused(*(argument.format(**names) for argument in arguments))
    assert not (tmp_path / "out").exists()  # nothing was begun


@pytest.mark.parametrize(
    "verb", ["demo", "recipes", "pretrain", "evaluate", "report", "detect", "fill"]
)
def test_help_has_an_example(verb, electra):
    code, out, _ = electra(verb, "--help")
    assert code == 0
    assert f"Example: electra {verb}" in " ".join(out.split())


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
    "electra.train.report.write_report": (
        "report r s --out o",
        {"runs": [Path("r"), Path("s")], "out": Path("o")},
    ),
    "electra.play.server.serve": (
        "play m n --runs r --host h --port 8000 --device cpu --open",
        {"models": ["m", "n"], "runs": Path("r"), "host": "h", "port": 8000, "device": "cpu"}
        | {"open_browser": True},
    ),
    "electra.train.evaluate.evaluate": (
        "evaluate r --data d --rows 7",
        {"run": Path("r"), "data": "d", "rows": 7},
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
