"""A small invented language, tokenizers trained on it, and helpers around `prepare`."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from electra.text import encode, readers
from electra.text.prepare import prepare
from electra.text.shards import Shards
from electra.text.tokenizer import train_tokenizer

CHUNK = 20_000  # bytes of text per shard: several shards from little text


@pytest.fixture(scope="session")
def corpus(make_text, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file of 200 documents."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(make_text(200) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer_folder(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a WordPiece tokenizer for the corpus."""
    out = tmp_path_factory.mktemp("tokenizer") / "wordpiece"
    train_tokenizer([corpus], out, vocab_size=300)
    return out


@pytest.fixture(scope="session", params=["wordpiece", "bpe", "unigram"])
def trained(request, corpus, tmp_path_factory) -> tuple[Tokenizer, Path]:
    """A tokenizer of each kind and its folder."""
    out = tmp_path_factory.mktemp("trained") / request.param
    size = {"wordpiece": 300, "bpe": 400, "unigram": 200}[request.param]
    return train_tokenizer([corpus], out, vocab_size=size, kind=request.param), out


@pytest.fixture(scope="session")
def many_shards(corpus: Path, tokenizer_folder: Path, tmp_path_factory) -> Path:
    """A folder of several shards with held-out rows in each, to be read only."""
    out = tmp_path_factory.mktemp("shards") / "shards"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers.chunk_documents, "__kwdefaults__", {"size": CHUNK})
        prepare([corpus], tokenizer=tokenizer_folder, out=out, length=32, held_out=0.2, workers=1)
    return out


@pytest.fixture
def run(corpus, tokenizer_folder, tmp_path, monkeypatch):
    """`prepare` with small chunks and default arguments."""
    monkeypatch.setattr(readers.chunk_documents, "__kwdefaults__", {"size": CHUNK})

    def run(out="shards", inputs=(corpus,), **options):
        options = {"tokenizer": tokenizer_folder, "length": 32, "workers": 1} | options
        return prepare(list(inputs), out=tmp_path / out, **options)

    return run


@pytest.fixture(scope="session")
def read_files() -> Callable[[Path], dict[str, bytes]]:
    """Return the content of every file of a folder."""

    def read(folder: Path) -> dict[str, bytes]:
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    return read


@pytest.fixture(scope="session")
def read_rows() -> Callable[[Path], dict[str, np.ndarray]]:
    """Return all rows of a prepared folder by split."""

    def read(folder: Path) -> dict[str, np.ndarray]:
        shards = Shards.open(folder)
        return {s: shards.gather(s, np.arange(shards.rows(s))) for s in ("train", "held_out")}

    return read


@pytest.fixture(scope="session")
def stopping():
    """`encode_chunk`, interrupted by Ctrl-C at a given chunk."""
    real = encode.encode_chunk

    def stopping(at):
        def interrupted(job, encoder, number, documents):
            if number == at:
                raise KeyboardInterrupt
            return real(job, encoder, number, documents)

        return interrupted

    return stopping


SCRIPT = """
import signal
import sys
from pathlib import Path
from electra.text import readers
from electra.text.prepare import prepare
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored when run in the background
    readers.chunk_documents.__kwdefaults__["size"] = {chunk}
    prepare([sys.argv[1]], tokenizer=Path(sys.argv[2]), out=Path(sys.argv[3]), length=32,
            workers=int(sys.argv[4]))
"""


@pytest.fixture
def start(tmp_path, tokenizer_folder, make_text):
    """Start the preparation of a larger text in another process."""
    text = tmp_path / "large.txt"
    text.write_text(make_text(2000, seed=3))
    script = tmp_path / "script.py"

    def start(out, workers=1, chunk=CHUNK, **options):
        script.write_text(SCRIPT.format(chunk=chunk))
        command = [sys.executable, script, text, tokenizer_folder, tmp_path / out, workers]
        return subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, **options)

    return start


@pytest.fixture(scope="session")
def wait_for_shards():
    """Wait until a folder has some shards."""

    def wait(folder: Path, count: int) -> None:
        for _ in range(2000):
            if len(list(folder.glob("*.bin"))) >= count:
                return
            time.sleep(0.005)
        raise AssertionError("no shards were written")

    return wait


@pytest.fixture
def piped(tmp_path):
    """Write bytes to a named pipe from another thread and return the pipe's path."""
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write(data):
        with suppress(BrokenPipeError):
            path.write_bytes(data)

    def pipe(data):
        threading.Thread(target=write, args=(data,), daemon=True).start()
        return path

    return pipe
