"""Load the nine GLUE tasks, from the official files or similar layouts."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from electra.errors import UserError, nearest
from electra.tasks.dev_split import example_texts, make_dev_split
from electra.tasks.examples import Sentence, Task
from electra.tasks.table import Cells, read_text, shorten, split_cells

ENTAILMENT = ("entailment", "not_entailment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The files, labels and defaults of one task."""

    folders: tuple[str, ...]
    """Normalized names of its folder (`normalize_name`)."""
    text: tuple[str, ...] = ("sentence1",)
    """Names of the column; the first one found is used."""
    pair: tuple[str, ...] = ("sentence2",)
    label: tuple[str, ...] = ("label",)
    labels: tuple[str, ...] = ("0", "1")
    """In the order of the label indices; empty for a regression."""
    metric: str = "accuracy"
    epochs: float = 3
    swap: bool = False
    header: tuple[str, ...] = ()
    """The columns of files without a header line."""


SPECS = {
    "cola": Spec(
        folders=("cola",),
        text=("sentence",),
        pair=(),
        metric="matthews",
        header=("source", "label", "star", "sentence"),
    ),
    "sst2": Spec(folders=("sst2", "sst"), text=("sentence",), pair=()),
    "mrpc": Spec(
        folders=("mrpc", "msrp"),
        text=("#1 String", "sentence1"),
        pair=("#2 String", "sentence2"),
        label=("Quality", "label"),
        swap=True,
    ),
    "stsb": Spec(
        folders=("stsb", "sts", "stsbenchmark"),
        label=("score", "label"),
        labels=(),
        metric="spearman",
        epochs=10,
        swap=True,
    ),
    "qqp": Spec(
        folders=("qqp", "quora"),
        text=("question1",),
        pair=("question2",),
        label=("is_duplicate", "label"),
    ),
    "mnli": Spec(
        folders=("mnli", "multinli"),
        text=("sentence1", "premise"),
        pair=("sentence2", "hypothesis"),
        label=("gold_label", "label"),
        labels=("contradiction", "entailment", "neutral"),
    ),
    "qnli": Spec(folders=("qnli",), text=("question",), pair=("sentence",), labels=ENTAILMENT),
    "rte": Spec(folders=("rte",), labels=ENTAILMENT, epochs=10),
    "wnli": Spec(folders=("wnli",)),
}
GLUE = tuple(SPECS)

TRAIN_FILES = ("train.tsv", "msr_paraphrase_train.txt")
OTHER_FILES = {  # for MNLI, `dev` and `test` are the matched ones
    "dev": ("dev.tsv", "dev_matched.tsv"),
    "dev_mismatched": ("dev_mismatched.tsv",),
    "test": ("test.tsv", "test_matched.tsv", "msr_paraphrase_test.txt"),
    "test_mismatched": ("test_mismatched.tsv",),
}
DIAGNOSTIC_FILES = ("diagnostic.tsv", "AX.tsv")
UNLABELLED_SPLITS = ("test", "test_mismatched", "ax")
ID_NAMES = ("index", "id", "idx")
NO_CONSENSUS = "-"
"""The label in MNLI when the annotators did not agree."""
UNKNOWN_LABELS = (NO_CONSENSUS, "-1", "")


def load_glue(name: str, folder: Path) -> Task:
    """Load a GLUE task from the folder of all tasks or from its own folder."""
    name = normalize_name(name)
    if name not in SPECS:
        raise UserError(f"GLUE has no task '{name}': {nearest(name, list(GLUE))}")
    spec = SPECS[name]
    task_folder = find_task_folder(spec, folder) or folder
    train = find_train_file(task_folder)
    if train is None:
        raise UserError(
            f"'{folder}' holds no train file of {name}: name the GLUE folder, which contains "
            f"{spec.folders[0].upper()}/train.tsv, or the folder of the task."
        )
    warnings = []
    if train.name not in TRAIN_FILES:
        warnings.append(
            f"{name}: there is no train.tsv; '{train.name}' is used, so the scores are not "
            "comparable with published ones."
        )
    splits: dict[str, list[Sentence]] = {}
    for split, file in {"train": train, **find_other_files(name, task_folder)}.items():
        splits[split], dropped = read_glue_file(
            name, file, labels_optional=split in UNLABELLED_SPLITS
        )
        if dropped:
            warnings.append(
                f"{name}: {dropped} rows of '{file.name}' are dropped: malformed, or without a "
                "label."
            )
    if "dev" not in splits:
        splits["train"], splits["dev"], note = make_dev_split(train, splits["train"], example_texts)
        warnings.append(f"{name}: {note}")
    without_stops = name == "mnli" and has_no_full_stops(splits["train"])
    without_stops = without_stops and not has_no_full_stops(splits["dev"])
    if without_stops:
        splits = {split: [strip_full_stops(e) for e in rows] for split, rows in splits.items()}
        warnings.append(
            f"{name}: no text of '{train.name}' ends with a full stop, so final full stops are "
            "removed in all splits."
        )
    return Task(
        name=name,
        kind="classify" if spec.labels else "regress",
        splits=splits,
        labels=spec.labels,
        metric=spec.metric,
        epochs=spec.epochs,
        swap=spec.swap,
        without_stops=without_stops,
        warnings=tuple(warnings),
    )


def available_tasks(folder: Path) -> list[str]:
    """List the tasks that `load_glue` can load from the GLUE folder."""
    return [name for name, spec in SPECS.items() if find_task_folder(spec, folder)]


def normalize_name(name: str) -> str:
    """Reduce a name to lower-case letters and digits: STS-B -> stsb."""
    return "".join(c for c in name.lower() if c.isalnum())


def find_task_folder(spec: Spec, folder: Path) -> Path | None:
    """Find the folder of a task by name: `folder` itself or one in it, with a train file."""
    if not folder.is_dir():
        raise UserError(
            f"There is no folder '{folder}': name the one that contains the GLUE tasks."
        )
    folders = [folder.resolve(), *sorted(p for p in folder.iterdir() if p.is_dir())]
    named = (p for p in folders if normalize_name(p.name) in spec.folders)
    return next((p for p in named if find_train_file(p)), None)


def find_train_file(folder: Path) -> Path | None:
    """Find the train file of a task: the usual name, else the only `train*.tsv`."""
    if usual := first_file(folder, TRAIN_FILES):
        return usual
    others = sorted(folder.glob("train*.tsv"))
    if len(others) > 1:
        names = ", ".join(f"'{p.name}'" for p in others)
        raise UserError(f"'{folder}' has several train files: keep one of {names}.")
    return others[0] if others else None


def find_other_files(name: str, folder: Path) -> dict[str, Path]:
    """Find the files of all splits but train."""
    files = {split: first_file(folder, names) for split, names in OTHER_FILES.items()}
    if name == "mnli":
        files["ax"] = first_file(folder, DIAGNOSTIC_FILES)
        for sibling in sorted(p for p in folder.resolve().parent.iterdir() if p.is_dir()):
            if normalize_name(sibling.name) in ("ax", "diagnostic"):
                files["ax"] = files["ax"] or first_file(sibling, (*DIAGNOSTIC_FILES, "test.tsv"))
    return {split: file for split, file in files.items() if file}


def first_file(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of some files that exists."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_glue_file(
    name: str, path: Path, *, labels_optional: bool, content: str | None = None
) -> tuple[list[Sentence], int]:
    """Read the examples of a file, and count the rows that were dropped.

    `content` is the text of the file if you have read it already.
    """
    spec = SPECS[name]
    rows = split_cells(read_text(path) if content is None else content)
    columns = spec.header
    if not columns or columns[-1] in rows[0][1]:
        columns = tuple(cell.strip() for cell in rows[0][1])
        del rows[0]
    text = find_column(path, columns, spec.text)
    pair = find_column(path, columns, spec.pair) if spec.pair else None
    labelled = not labels_optional or bool(set(spec.label) & set(columns))
    label = find_column(path, columns, spec.label) if labelled else None
    index = find_column(path, columns, ID_NAMES) if set(ID_NAMES) & set(columns) else None
    examples: list[Sentence] = []
    # the official train file of QQP has malformed rows
    lenient = name == "qqp" and not labels_optional
    for line, row in complete_rows(path, rows, len(columns), lenient=lenient):
        given = None if label is None else parse_label(spec, f"'{path}' line {line}", row[label])
        if given is None and not labels_optional and label is not None:
            if row[label] != NO_CONSENSUS:
                raise UserError(f"'{path}' line {line} has no label: name a file with labels.")
            continue
        examples.append(
            Sentence(
                id=str(len(examples)) if index is None else row[index],
                text=row[text],
                pair=None if pair is None else row[pair],
                label=given,
            )
        )
    if not examples:
        raise UserError(f"'{path}' has no rows: fill it or name another folder.")
    return examples, len(rows) - len(examples)


def find_column(path: Path, columns: tuple[str, ...], names: tuple[str, ...]) -> int:
    """The index of the first of some columns that exists."""
    for name in names:
        if name in columns:
            return columns.index(name)
    raise UserError(
        f"'{path}' line 1 names no column '{names[-1]}', it has: "
        f"{', '.join(shorten(name) for name in columns)}."
    )


def complete_rows(path: Path, rows: list[Cells], width: int, *, lenient: bool) -> Iterator[Cells]:
    """The rows with one cell per column; others are an error unless `lenient`."""
    for line, row in rows:
        if len(row) == width:
            yield line, row
        elif not lenient:
            raise UserError(
                f"'{path}' line {line} has {len(row)} cells instead of {width}: repair that row."
            )


def parse_label(spec: Spec, location: str, given: str) -> int | float | None:
    """The label index or value of a row; None if unknown."""
    given = given.strip()
    if given in spec.labels:
        return spec.labels.index(given)
    if given in UNKNOWN_LABELS:
        return None
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if spec.labels or not math.isfinite(value):
        expected = ", ".join(spec.labels) or "a number"
        raise UserError(f"{location}: the label is '{shorten(given)}' instead of {expected}.")
    return value


def has_no_full_stops(examples: list[Sentence]) -> bool:
    """Whether no text ends with a full stop."""
    return not any(e.text.endswith(".") or str(e.pair).endswith(".") for e in examples)


def strip_full_stops(example: Sentence) -> Sentence:
    """Remove full stops at the end of the texts."""
    pair = None if example.pair is None else example.pair.rstrip(" .")
    return replace(example, text=example.text.rstrip(" ."), pair=pair)
