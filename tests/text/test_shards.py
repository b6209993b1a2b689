"""Shards on disk: opening, gathering, and detecting damage."""

import json
import shutil

import numpy as np
import pytest

from electra.errors import UserError
from electra.text import readers
from electra.text.prepare import prepare
from electra.text.shards import Shards


@pytest.fixture(scope="module")
def folder(corpus, tokenizer_folder, tmp_path_factory):
    """A folder of several shards with held-out rows in each."""
    out = tmp_path_factory.mktemp("shards") / "shards"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers.chunk_documents, "__kwdefaults__", {"size": 20_000})
        prepare([corpus], tokenizer=tokenizer_folder, out=out, length=32, held_out=0.2, workers=1)
    return out


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def whole(folder):
    """Read both splits file by file, without the class under test."""
    index = json.loads((folder / "index.json").read_text())
    train, held = [], []
    for shard in index["shards"]:
        rows = np.fromfile(folder / shard["file"], dtype=index["dtype"]).reshape(-1, 34)
        assert len(rows) == shard["rows"]
        held.append(rows[: shard["held_out"]])
        train.append(rows[shard["held_out"] :])
    return {"train": np.concatenate(train), "held_out": np.concatenate(held)}


def test_gather_returns_the_rows_on_disk(folder):
    shards = Shards.open(folder)
    assert len(shards.shards) > 3
    random = np.random.default_rng(0)
    for split, rows in whole(folder).items():
        assert shards.rows(split) == len(rows) > 10
        for indices in (
            np.arange(len(rows)),
            random.integers(0, len(rows), 200),
            np.array([len(rows) - 1, 0, 0]),
            np.array([], dtype=np.int64),
        ):
            found = shards.gather(split, indices)
            assert found.dtype == np.int32
            assert np.array_equal(found, rows[indices])


def test_attributes(folder, tokenizer_folder):
    shards = Shards.open(folder)
    assert (shards.length, shards.layout, shards.dtype) == (32, "pairs", "uint16")
    assert shards.vocabulary_size == 300
    assert shards.tokens == sum(int(rows[:, -1].sum()) for rows in whole(folder).values())
    assert shards.fingerprint == json.loads((folder / "index.json").read_text())["tokenizer"]
    assert (shards.tokenizer / "tokenizer.json").is_file()


def test_index_out_of_range(folder):
    shards = Shards.open(folder)
    for wrong in (-1, shards.rows("train")):
        with pytest.raises(IndexError):
            shards.gather("train", np.array([wrong]))


def test_digest_depends_on_the_data_only(folder, copy):
    assert Shards.open(folder).digest == Shards.open(copy).digest
    index = json.loads((copy / "index.json").read_text())
    index["sources"] = []
    (copy / "index.json").write_text(json.dumps(index))
    assert Shards.open(copy).digest == Shards.open(folder).digest
    index["shards"][0]["held_out"] += 1
    (copy / "index.json").write_text(json.dumps(index))
    assert Shards.open(copy).digest != Shards.open(folder).digest


def test_changed_shard_is_reported(copy):
    path = copy / "shard-00002.bin"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"shard-00002\.bin' was changed.*electra prepare"):
        Shards.open(copy)


def test_shards_of_wrong_size_and_missing_shards_are_reported(copy):
    path = copy / "shard-00001.bin"
    content = path.read_bytes()
    for other in (content[:-2], content + content[:68]):
        path.write_bytes(other)
        with pytest.raises(UserError, match=r"shard-00001\.bin' has \d+ bytes, not"):
            Shards.open(copy)
    path.unlink()
    with pytest.raises(UserError, match=r"shard-00001\.bin' is missing"):
        Shards.open(copy)


def test_invalid_folders(folder, copy, tmp_path):
    with pytest.raises(UserError, match="not a folder of token shards"):
        Shards.open(tmp_path)
    (copy / "index.json").write_text('{"format": 99}')
    with pytest.raises(UserError, match="format 99"):
        Shards.open(copy)
    index = json.loads((folder / "index.json").read_text()) | {"shards": [{"file": "a"}]}
    for broken in ('{"for', "[]", '{"format": 1}', json.dumps(index)):
        (copy / "index.json").write_text(broken)
        with pytest.raises(UserError, match="damaged"):
            Shards.open(copy)
