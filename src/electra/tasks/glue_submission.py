"""Write predictions for the GLUE test sets as a submission to the GLUE server."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from electra.errors import UserError, nearest
from electra.files import write_atomic
from electra.tasks.glue import SPECS

FILE_NAMES = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "stsb": "STS-B",
    "qqp": "QQP",
    "mnli": "MNLI-m",
    "mnli_mismatched": "MNLI-mm",
    "qnli": "QNLI",
    "rte": "RTE",
    "wnli": "WNLI",
    "ax": "AX",
}
"""The file of each test set; `mnli_mismatched` and `ax` are extra splits of `mnli`."""

SUBMISSION = "submission.zip"
TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal predictions give equal archives


def write_submission(folder: Path, predictions: Mapping[str, npt.ArrayLike]) -> Path:
    """Write one TSV file per test set and an archive of all; return the archive.

    Predictions are label indices, or values for `stsb`, in the order of the test file.
    """
    if not predictions:
        raise UserError("There are no predictions to submit: the tasks have no test files.")
    files = {}
    for task, values in predictions.items():
        if task not in FILE_NAMES:
            raise UserError(f"GLUE has no test set '{task}': {nearest(task, list(FILE_NAMES))}")
        lines = [f"{i}\t{line}\n" for i, line in enumerate(format_predictions(task, values))]
        files[f"{FILE_NAMES[task]}.tsv"] = "".join(["index\tprediction\n", *lines]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(
                zipfile.ZipInfo(name, TIMESTAMP), content, compress_type=zipfile.ZIP_DEFLATED
            )
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomic(folder / name, content)
    write_atomic(folder / SUBMISSION, buffer.getvalue())
    return folder / SUBMISSION


def format_predictions(task: str, values: npt.ArrayLike) -> list[str]:
    """Format predictions for the server: label names, or similarities from 0 to 5."""
    labels = SPECS["mnli" if task in ("mnli_mismatched", "ax") else task].labels
    if labels:
        return [labels[index] for index in np.asarray(values, np.int64).tolist()]
    scores = np.asarray(values, np.float64)
    if not np.isfinite(scores).all():
        raise UserError(
            f"A prediction for {task} is not a number: fine-tune again with a lower lr."
        )
    return [f"{score:.3f}" for score in np.clip(scores, 0.0, 5.0).tolist()]
