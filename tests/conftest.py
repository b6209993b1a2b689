"""Fixtures for every package: a small made-up language, a tokenizer, shards, and a tiny recipe."""

import contextlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from electra import cli
from electra.hub.folders import export
from electra.models.electra import Discriminator, GeneratorConfig
from electra.models.encoder import Encoder, EncoderConfig
from electra.optim.adam import OptimConfig
from electra.text.prepare import prepare
from electra.text.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from electra.train.data import DataConfig
from electra.train.loop import LoopConfig
from electra.train.pretrain import start
from electra.train.settings import PretrainConfig


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")
    parser.addoption("--torture", action="store_true", help="the long form of tests/torture")


def pytest_configure(config: pytest.Config) -> None:
    """Without a CUDA device the kernels run through Triton's interpreter.

    Triton reads the switch when it is imported, which transformers does too: so it is set before
    any file of tests is.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    # Some virtual machines announce AMX and end a process that uses it.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    no_gpu = pytest.mark.skip(reason="needs a CUDA device")
    too_slow = pytest.mark.skip(reason="takes minutes; run with --slow")
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(too_slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many faults the tests of tests/torture have survived."""
    passed = terminalreporter.stats.get("passed", [])
    if faults := sum(report.user_properties.count(("fault survived", 1)) for report in passed):
        terminalreporter.write_line(f"Faults survived: {faults}")


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums in one order: the stored curves and the bit-exact tests depend on it."""
    torch.set_num_threads(1)


@pytest.fixture
def device() -> torch.device:
    """Where the kernels run: on a CUDA device, or through Triton's interpreter on the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    import triton

    if triton.__version__.startswith("3.6."):
        pytest.skip("Triton's interpreter agrees with NumPy 2.4 from version 3.7 on")
    return torch.device("cpu")


SCENES = {  # a word of the first row decides all the words of its scene
    "farmer": ("plough", "field", "barley", "barn"),
    "sailor": ("sail", "harbour", "cargo", "ship"),
    "baker": ("knead", "oven", "bread", "shop"),
    "judge": ("weigh", "court", "verdict", "bench"),
    "miner": ("dig", "shaft", "copper", "pit"),
    "weaver": ("spin", "loom", "linen", "mill"),
}
ADJECTIVES = ("old", "young", "tired", "proud", "clever", "quiet")
WORDS = (*ADJECTIVES, *SCENES, *(act for act, *_ in SCENES.values()))


def made_up_text(documents: int, seed: int = 0) -> str:
    """Documents of a language with simple rules, so that a replaced word can be noticed."""
    rng = random.Random(seed)
    blocks = []
    for _ in range(documents):
        who = rng.choice(list(SCENES))
        act, place, thing, home = SCENES[who]
        lines = []
        for _ in range(rng.randint(3, 8)):
            kind = rng.choice(ADJECTIVES)
            lines.append(
                rng.choice(
                    (
                        f"the {kind} {who} went to the {place} to {act} the {thing} .",
                        f"in the {place} the {who} began to {act} , and the {thing} was {kind} .",
                        f"the {thing} of the {who} was brought from the {place} to the {home} .",
                        f"when the {home} was closed , the {who} would {act} in the {place} .",
                    )
                )
            )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file of the made-up language."""
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text(made_up_text(600), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer_folder(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A WordPiece tokenizer of that text."""
    out = tmp_path_factory.mktemp("tokenizer") / "wordpiece"
    train_tokenizer([corpus], out, vocab_size=150)
    return out


@pytest.fixture(scope="session")
def data_folder(
    corpus: Path, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Shards of that text, rows of 32 tokens."""
    out = tmp_path_factory.mktemp("data") / "shards"
    prepare([corpus], tokenizer=tokenizer_folder, out=out, length=32, workers=1, held_out=0.1)
    return out


def tiny_config(data_folder: Path) -> PretrainConfig:
    """A recipe that takes milliseconds a step."""
    return PretrainConfig(
        name="tiny",
        model=EncoderConfig(layers=2, hidden=32, embedding=16, max_positions=64),
        generator=GeneratorConfig(width=0.5),
        optim=OptimConfig(lr=2e-3, warmup=0.1),
        data=DataConfig(folder=str(data_folder), seq_length=32, batch_size=8),
        train=LoopConfig(
            budget="20steps",
            device="cpu",
            report_every=5,
            validate_every=10,
            validate_rows=16,
            checkpoint_every=10,
        ),
    )


@pytest.fixture(scope="session")
def tiny(data_folder: Path) -> PretrainConfig:
    """That recipe, with its data."""
    return tiny_config(data_folder)


@pytest.fixture(scope="session")
def finished(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, to be read only; copy it before you break it."""
    import io

    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "finished"
    assert start(tiny_config(data_folder), out, Console(file=io.StringIO(), width=200)) == 0
    return out


@pytest.fixture(scope="session")
def model_folder(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A discriminator with random weights and the tokenizer of the made-up language."""
    tokenizer = load_tokenizer(tokenizer_folder)
    torch.manual_seed(0)
    config = EncoderConfig(
        layers=2,
        hidden=32,
        heads=2,
        embedding=16,
        max_positions=64,
        vocab_size=tokenizer.get_vocab_size(),
        init_std=0.1,
    )
    folder = tmp_path_factory.mktemp("model") / "discriminator"
    export(Discriminator(Encoder(config)), folder, 0)
    save_tokenizer(tokenizer, folder, max_length=64)
    return folder


@pytest.fixture(scope="session")
def released(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the finished run, as `electra release` writes it; read only."""
    from electra.release.package import release

    out = tmp_path_factory.mktemp("weights") / "tiny-model-xx"
    release(str(finished), out, name="tiny-model-xx", version="1.0.0", card=None)
    return out


@pytest.fixture
def package(released: Path, tmp_path: Path) -> Path:
    """A copy of that package, to be broken."""
    return Path(shutil.copytree(released, tmp_path / "package"))


@pytest.fixture
def installed(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put that package on the path as pip does; returns its folder with the networks."""

    modules = []

    def install(name: str) -> Path:
        site, module = tmp_path / "site", name.replace("-", "_")
        shutil.copytree(released / "tiny_model_xx", site / module)
        info = site / f"{module}-1.0.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n")
        (info / "entry_points.txt").write_text(f"[electra.models]\n{name} = {module}\n")
        monkeypatch.syspath_prepend(site)
        modules.append(module)
        return site / module

    yield install
    for module in modules:  # a test may have imported it
        sys.modules.pop(module, None)


def marked(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts with 'bread' in them, or with 'cargo', and which of the two."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        words = [rng.choice(WORDS) for _ in range(rng.randint(2, 12))]
        label = rng.choice(("bread", "cargo"))
        words.insert(rng.randrange(len(words) + 1), label)
        rows.append((" ".join(words), label))
    return rows


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.csv and dev.csv for `classify`."""
    folder = tmp_path_factory.mktemp("reviews")
    for split, count, seed in (("train", 240, 1), ("dev", 60, 2)):
        lines = ["text,label", *(f"{text},{label}" for text, label in marked(count, seed))]
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def with_train():
    """Change settings of the loop: `with_train(config, budget="5steps")`."""

    def change(config: PretrainConfig, **settings) -> PretrainConfig:
        return replace(config, train=replace(config.train, **settings))

    return change


@pytest.fixture
def console() -> Console:
    """A console that keeps its output to itself."""
    import io

    return Console(file=io.StringIO(), width=200)


@pytest.fixture
def electra(monkeypatch, capsys):
    """Run a command as the program does: (exit code, standard output, standard error)."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["electra", *map(str, arguments)])
        capsys.readouterr()
        code = cli.run_app()
        found = capsys.readouterr()
        return code, found.out, found.err

    return run


@pytest.fixture
def unread(monkeypatch):
    """Run a command with all output into a pipe that nobody reads; returns the exit code."""

    def run(*arguments: object) -> int:
        with monkeypatch.context() as patch, contextlib.ExitStack() as opened:
            patch.setattr(sys, "argv", ["electra", *map(str, arguments)])
            for name in ("stdout", "stderr"):
                reader, writer = os.pipe()
                os.close(reader)
                opened.enter_context(contextlib.suppress(BrokenPipeError))  # of what it still holds
                stream = opened.enter_context(open(writer, "w", buffering=1))  # noqa: PTH123
                patch.setattr(sys, name, stream)
            return cli.run_app()

    return run


@pytest.fixture
def refused(electra):
    """Run a command that must end with code 2 and one sentence; returns the sentence."""

    def run(*arguments: object) -> str:
        code, out, err = electra(*arguments)
        assert code == 2, out + err
        assert err.startswith("error: "), err
        assert err.count("\n") == 1, err
        assert "Traceback" not in err + out
        return err

    return run


@pytest.fixture
def bash(tmp_path):
    """Run the lines of a page in the test's folder, as a reader would; returns what they print."""

    def run(script: str) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    return run


SYLLABLES = [
    "ka",
    "ri",
    "to",
    "men",
    "sul",
    "va",
    "pe",
    "no",
    "shi",
    "dra",
    "lu",
    "bex",
    "öm",
    "té",
]


def invented_text(documents: int, seed: int = 0, lines: int = 6, words: int = 12) -> str:
    """Return documents of invented words, separated by blank lines."""
    dice = random.Random(seed)
    lexicon = ["".join(dice.choices(SYLLABLES, k=dice.randint(1, 4))) for _ in range(400)]

    def line() -> str:
        some = dice.choices(lexicon, k=dice.randint(1, 2 * words))
        return " ".join(some).capitalize() + dice.choice(".!?")

    return "\n\n".join(
        "\n".join(line() for _ in range(dice.randint(1, 2 * lines))) for _ in range(documents)
    )


@pytest.fixture(scope="session")
def make_text() -> Callable[..., str]:
    """The function that invents text."""
    return invented_text
