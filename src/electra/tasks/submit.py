"""The file that GLUE's server judges: predictions for the tests whose labels are hidden."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from electra.errors import UserError, nearest
from electra.files import write_atomic
from electra.tasks.glue import SPECS

NAMES = {
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
"""Of the files, by task; `mnli` is its split `test`, `mnli_mismatched` and `ax` are the others."""

SUBMISSION = "submission.zip"
MOMENT = (1980, 1, 1, 0, 0, 0)  # of every file in the archive: the same predictions, the same bytes


def write_submission(folder: Path, predictions: Mapping[str, npt.ArrayLike]) -> Path:
    """Write predictions in the order of the test files: a TSV file each, and all in one archive.

    A prediction is the number of a label, or for `stsb` the value.
    """
    if not predictions:
        raise UserError("There are no predictions to submit: the tasks have no test files.")
    files = {}
    for task, values in predictions.items():
        if task not in NAMES:
            raise UserError(f"GLUE has no test of '{task}': {nearest(task, list(NAMES))}")
        lines = [f"{index}\t{line}\n" for index, line in enumerate(written(task, values))]
        files[f"{NAMES[task]}.tsv"] = "".join(["index\tprediction\n", *lines]).encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as pack:
        for name, content in files.items():
            pack.writestr(
                zipfile.ZipInfo(name, MOMENT), content, compress_type=zipfile.ZIP_DEFLATED
            )
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomic(folder / name, content)
    write_atomic(folder / SUBMISSION, archive.getvalue())
    return folder / SUBMISSION


def written(task: str, values: npt.ArrayLike) -> list[str]:
    """Predictions as the server wants them: labels by name, similarities from 0 to 5."""
    labels = SPECS["mnli" if task in ("mnli_mismatched", "ax") else task].labels
    if labels:
        return [labels[number] for number in np.asarray(values, np.int64).tolist()]
    scores = np.asarray(values, np.float64)
    if not np.isfinite(scores).all():
        raise UserError(f"A prediction of {task} is no number: the model has not learned it.")
    return [f"{score:.3f}" for score in np.clip(scores, 0.0, 5.0).tolist()]
