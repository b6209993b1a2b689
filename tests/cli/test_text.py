"""The text commands: output, exit codes, and fast start."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from electra import __version__, cli
from electra.errors import UserError
from electra.text.tokenizer import train_tokenizer

RUN = [sys.executable, "-m", "electra"]


@pytest.fixture(scope="module")
def corpus(make_text, tmp_path_factory) -> Path:
    """A text file of 200 documents, with accents."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(make_text(200) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tokenizer_folder(corpus, tmp_path_factory) -> Path:
    """The folder of a WordPiece tokenizer for the corpus."""
    out = tmp_path_factory.mktemp("tokenizer") / "wordpiece"
    train_tokenizer([corpus], out, vocab_size=300)
    return out


def electra(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *map(str, arguments)], capture_output=True, text=True, timeout=60, **options
    )


def test_train_inspect_prepare(corpus, tmp_path):
    tokenizer, shards = tmp_path / "tokenizer", tmp_path / "shards"
    done = electra("tokenizer", "train", corpus, "--out", tokenizer, "--vocab-size", 300)
    assert done.returncode == 0, done.stderr
    assert "300 tokens" in done.stdout
    assert "warning: accents lost" in done.stderr
    done = electra("tokenizer", "inspect", tokenizer, corpus)
    assert done.returncode == 0, done.stderr
    assert "tokens per word" in done.stdout
    command = ("prepare", corpus, "--tokenizer", tokenizer, "--out", shards, "--length", 32)
    done = electra(*command, "--workers", 2)
    assert done.returncode == 0, done.stderr
    assert "tokens lost" in done.stdout
    assert done.stderr == ""
    other_name = [("--seq-length" if word == "--length" else word) for word in command]
    for same in (command, other_name):
        done = electra(*same)
        assert done.returncode == 0
        assert "already prepared" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("prepare", "none.txt", "--tokenizer", "{tok}", "--out", "{out}"), "no file or folder"),
        (("prepare", "{text}", "--tokenizer", "none", "--out", "{out}"), "no tokenizer 'none'"),
        (("prepare", "{text}", "--tokenizer", "{tok}", "--out", "{text}"), "is a file"),
        (("prepare", "{text}", "--tokenizer", "{tok}", "--out", "{out}", "--seed", "-4"), "--seed"),
        (("tokenizer", "train", "{text}", "--out", "{tok}"), "already holds a tokenizer"),
        (("tokenizer", "train", "none.txt", "--out", "{out}"), "no file or folder"),
        (("tokenizer", "inspect", "none", "{text}"), "no tokenizer 'none'"),
        (("tokenizer", "inspect", "{tok}", "none.txt"), "no file or folder"),
    ],
)  # fmt: skip
def test_errors_are_one_sentence(arguments, message, corpus, tokenizer_folder, tmp_path):
    names = {"tok": tokenizer_folder, "text": corpus, "out": tmp_path / "out"}
    done = electra(*(argument.format(**names) for argument in arguments))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("this and that"), 2, "error: this and that"),
        (OSError(28, "No space left on device"), 2, "error: the disk is full"),
        (PermissionError(13, "Permission denied", "a/b"), 2, "error: 'a/b' cannot be used: Perm"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_exceptions_become_one_sentence(error, code, message, capsys, monkeypatch):
    def broken(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("sign", ["journal.jsonl", "shard-00000.bin"])
def test_ctrl_c_says_how_to_resume(sign, tmp_path, make_text, tokenizer_folder):
    text = tmp_path / "text.txt"
    text.write_text(make_text(300) + ("\n\n" + make_text(100)) * 600)  # four chunks
    process = subprocess.Popen(
        [
            *(*RUN, "prepare", text, "--workers", "2"),
            *("--tokenizer", tokenizer_folder, "--out", tmp_path / "out"),
        ],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for _ in range(2000):
        if (tmp_path / "out" / sign).exists():  # the workers are starting, or at work
            break
        time.sleep(0.005)
    time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "Run the same command again to continue.\nerror: stopped.\n"


def test_usage_errors_exit_with_2():
    for arguments in (("prepare",), ("prepare", "a", "--lenght", "3"), ("nothing",)):
        done = electra(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("kind", "size"), [("unigram", -3), ("bpe", 10**10), ("wordpiece", 10**20)]
)
def test_invalid_vocabulary_size(kind, size, corpus, tmp_path):
    out = tmp_path / "out"
    done = electra(
        "tokenizer", "train", corpus, f"--kind={kind}", f"--vocab-size={size}", "--out", out
    )
    assert done.returncode == 2
    assert "--vocab-size" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    "path", ["", "tokenizer", "tokenizer train", "tokenizer inspect", "prepare"]
)
def test_help_has_an_example(path):
    result = CliRunner().invoke(cli.app, [*path.split(), "--help"])
    assert result.exit_code == 0
    if path not in ("", "tokenizer"):
        assert f"Example: electra {path}" in " ".join(result.output.split())


def test_version():
    assert electra("--version").stdout == f"electra {__version__}\n"


def test_help_is_fast_and_imports_little():
    code = (
        "import sys\n"
        "from electra.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numpy', 'datasets', 'pyarrow'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # In turns, for others may be at work on the machine
    ways = ("-m", "electra", "--help"), ("-c", "import rich.console, rich.table, typer")
    ours, libraries = zip(*(map(seconds, ways) for _ in range(5)), strict=True)
    assert min(ours) < 5 * min(libraries)


def seconds(words: tuple[str, ...]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *words], capture_output=True, check=True)
    return time.perf_counter() - began


def test_commands_need_no_torch(corpus, tmp_path):
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from electra.cli import app\n"
        f"text, out = {str(corpus)!r}, {str(tmp_path)!r}\n"
        "def run(*a): app(list(a), standalone_mode=False)\n"
        "run('tokenizer', 'train', text, '--out', out + '/t', '--vocab-size', '300')\n"
        "run('tokenizer', 'inspect', out + '/t', text)\n"
        "run('prepare', text, '--tokenizer', out + '/t', '--out', out + '/s', '--workers', '1')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_inputs_from_pipes(corpus, tmp_path):
    """Standard input and process substitution in a shell."""
    script = (
        f"cat {corpus} | {sys.executable} -m electra tokenizer train /dev/stdin --out t "
        "--vocab-size 300 && "
        f"{sys.executable} -m electra tokenizer inspect t <(cat {corpus}) && "
        f"{sys.executable} -m electra prepare <(cat {corpus}) --tokenizer t --out s --length 32 "
        "--workers 2"
    )
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    options = ("--tokenizer", tmp_path / "t", "--out", tmp_path / "plain", "--length", 32)
    assert electra("prepare", corpus, *options).returncode == 0
    for shard in (tmp_path / "plain").glob("*.bin"):
        assert (tmp_path / "s" / shard.name).read_bytes() == shard.read_bytes()


def test_existing_tokenizer_is_refused_before_a_pipe_is_read(tokenizer_folder, tmp_path):
    """Opening a named pipe without a writer would wait forever."""
    os.mkfifo(tmp_path / "pipe")
    done = electra("tokenizer", "train", tmp_path / "pipe", "--out", tokenizer_folder)
    assert done.returncode == 2
    assert "already holds a tokenizer" in done.stderr


def test_prepare_warns_of_lost_text(tokenizer_folder, tmp_path):
    lines = ['{"text": "ω ω kari"}', '{"text": null}'] * 300
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    options = ("--tokenizer", tokenizer_folder, "--out", tmp_path / "s", "--workers", 1)
    done = electra("prepare", tmp_path / "a.jsonl", *options)
    assert done.returncode == 0
    assert "warning: high unknown rate" in done.stderr
    assert "warning: records without text: 300 of 600 were skipped" in done.stderr


def test_suggested_commands_quote_the_path(tmp_path):
    text = tmp_path / "it's a text.txt"
    text.write_bytes(b"na\xefve")
    done = electra("tokenizer", "train", text, "--out", tmp_path / "t")
    command = done.stderr.partition("`")[2].partition("`")[0]
    assert shlex.split(command)[-1] == str(text)
