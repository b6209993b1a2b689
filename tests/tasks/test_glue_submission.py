"""The submission to the GLUE server."""

import zipfile

import numpy as np
import pytest

from electra.errors import UserError
from electra.tasks.glue_submission import write_submission


def test_files_and_archive(tmp_path):
    predictions = {
        "cola": [0, 1],
        "sst2": [1, 1],
        "mrpc": np.asarray([1, 0]),
        "stsb": np.float32([-0.2, 2.34567, 5.9]),
        "qqp": [0, 1],
        "mnli": [0, 1, 2],
        "mnli_mismatched": [2, 1],
        "qnli": [0, 1],
        "rte": [1, 0],
        "wnli": [1, 0],
        "ax": [1, 0],
    }
    path = write_submission(tmp_path / "out", predictions)
    assert path == tmp_path / "out" / "submission.zip"
    with zipfile.ZipFile(path) as pack:
        files = {name: pack.read(name).decode() for name in pack.namelist()}
    names = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX"
    assert list(files) == [f"{name}.tsv" for name in names.split()]
    head = "index\tprediction\n"
    assert files["CoLA.tsv"] == head + "0\t0\n1\t1\n"
    assert files["STS-B.tsv"] == head + "0\t0.000\n1\t2.346\n2\t5.000\n"
    assert files["MNLI-m.tsv"] == head + "0\tcontradiction\n1\tentailment\n2\tneutral\n"
    assert files["MNLI-mm.tsv"] == head + "0\tneutral\n1\tentailment\n"
    assert files["AX.tsv"] == head + "0\tentailment\n1\tcontradiction\n"
    assert files["QNLI.tsv"] == head + "0\tentailment\n1\tnot_entailment\n"
    assert files["RTE.tsv"] == head + "0\tnot_entailment\n1\tentailment\n"
    for name, content in files.items():
        assert (tmp_path / "out" / name).read_bytes() == content.encode()


def test_archive_is_deterministic(tmp_path):
    packs = [write_submission(tmp_path / name, {"rte": [0, 1]}).read_bytes() for name in "ab"]
    assert packs[0] == packs[1]
    with zipfile.ZipFile(tmp_path / "a" / "submission.zip") as pack:
        assert {info.date_time[0] for info in pack.infolist()} == {1980}


@pytest.mark.parametrize(
    ("predictions", "words"),
    [
        ({}, "no predictions"),
        ({"sst": [1]}, "did you mean 'sst2'"),
        ({"stsb": [1.0, float("nan")]}, "not a number"),
    ],
)
def test_invalid_predictions_are_refused(tmp_path, predictions, words):
    with pytest.raises(UserError, match=words):
        write_submission(tmp_path, predictions)
    assert not list(tmp_path.iterdir())
