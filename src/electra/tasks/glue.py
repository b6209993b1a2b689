"""GLUE's nine tasks, from the official files or from the same in another layout."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from electra.errors import UserError, nearest
from electra.tasks.examples import Sentence, Task
from electra.tasks.split import content, set_aside
from electra.tasks.table import Cells, plain_cells, read_text, short

ENTAILMENT = ("entailment", "not_entailment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """How one task is written and judged."""

    folders: tuple[str, ...]
    """Names of its folder, in small letters and digits only."""
    text: tuple[str, ...] = ("sentence1",)
    """Names of the column; the first that is there counts."""
    pair: tuple[str, ...] = ("sentence2",)
    label: tuple[str, ...] = ("label",)
    labels: tuple[str, ...] = ("0", "1")
    """In the order of the numbers that the model learns; none for a value."""
    metric: str = "accuracy"
    epochs: float = 3
    swap: bool = False
    bare: tuple[str, ...] = ()
    """The columns of files that have no header."""


SPECS = {
    "cola": Spec(
        folders=("cola",),
        text=("sentence",),
        pair=(),
        metric="matthews",
        bare=("source", "label", "star", "sentence"),
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

TRAIN = ("train.tsv", "msr_paraphrase_train.txt")
FILES = {  # the split `dev` of MNLI is the matched one
    "dev": ("dev.tsv", "dev_matched.tsv"),
    "dev_mismatched": ("dev_mismatched.tsv",),
    "test": ("test.tsv", "test_matched.tsv", "msr_paraphrase_test.txt"),
    "test_mismatched": ("test_mismatched.tsv",),
}
DIAGNOSTIC = ("diagnostic.tsv", "AX.tsv")
HIDDEN = ("test", "test_mismatched", "ax")
"""Splits whose labels are secret."""
IDS = ("index", "id", "idx")
DISPUTED = "-"
"""The label of MNLI's rows on which the annotators did not agree."""
UNKNOWN = (DISPUTED, "-1", "")


def load_glue(name: str, folder: Path) -> Task:
    """A task of GLUE, from the folder of all tasks or from its own."""
    name = plain(name)
    if name not in SPECS:
        raise UserError(f"GLUE has no task '{name}': {nearest(name, list(GLUE))}")
    spec = SPECS[name]
    home = task_folder(spec, folder) or folder
    train = train_file(home)
    if train is None:
        raise UserError(
            f"'{folder}' holds no train file of {name}: name the folder of GLUE, with "
            f"{spec.folders[0].upper()}/train.tsv in it, or the task's own."
        )
    warnings = []
    if train.name not in TRAIN:
        warnings.append(
            f"{name}: there is no train.tsv; '{train.name}' is used, so the scores are not "
            "comparable with published ones."
        )
    splits: dict[str, list[Sentence]] = {}
    for split, file in {"train": train, **other_files(name, home)}.items():
        splits[split], broken = read_split(name, file, hidden=split in HIDDEN)
        if broken:
            warnings.append(
                f"{name}: {broken} rows of '{file.name}' are left out: broken or without a label."
            )
    if "dev" not in splits:
        splits["train"], splits["dev"], note = set_aside(train, splits["train"], content)
        warnings.append(f"{name}: {note}")
    without_stops = name == "mnli" and lost_stops(splits["train"]) and not lost_stops(splits["dev"])
    if without_stops:
        splits = {split: [without_stop(e) for e in rows] for split, rows in splits.items()}
        warnings.append(
            f"{name}: no text of '{train.name}' ends with a full stop, so final full stops are "
            "taken away in all splits."
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


def present(folder: Path) -> list[str]:
    """The tasks that `load_glue` finds in GLUE's folder; where dev is missing it makes one."""
    homes = {name: task_folder(spec, folder) for name, spec in SPECS.items()}
    return [name for name, home in homes.items() if home and train_file(home)]


def plain(name: str) -> str:
    """A name in small letters and digits: STS-B -> stsb."""
    return "".join(c for c in name.lower() if c.isalnum())


def task_folder(spec: Spec, folder: Path) -> Path | None:
    """The folder of a task: the one given or one in it, by its name."""
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}': name the one that holds GLUE's tasks.")
    folders = [folder.resolve(), *sorted(p for p in folder.iterdir() if p.is_dir())]
    return next((p for p in folders if plain(p.name) in spec.folders and train_file(p)), None)


def train_file(home: Path) -> Path | None:
    """The train file of a task's folder, if need be one with a longer name."""
    if whole := first_file(home, TRAIN):
        return whole
    others = sorted(home.glob("train*.tsv"))
    if len(others) > 1:
        names = ", ".join(f"'{p.name}'" for p in others)
        raise UserError(f"'{home}' has several train files: leave one of {names}.")
    return others[0] if others else None


def other_files(name: str, home: Path) -> dict[str, Path]:
    """The files of the splits besides train."""
    files = {split: first_file(home, names) for split, names in FILES.items()}
    if name == "mnli":
        files["ax"] = first_file(home, DIAGNOSTIC)
        for folder in sorted(p for p in home.resolve().parent.iterdir() if p.is_dir()):
            if plain(folder.name) in ("ax", "diagnostic"):
                files["ax"] = files["ax"] or first_file(folder, (*DIAGNOSTIC, "test.tsv"))
    return {split: file for split, file in files.items() if file}


def first_file(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of some files that is there."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_split(
    name: str, path: Path, *, hidden: bool, content: str | None = None
) -> tuple[list[Sentence], int]:
    """The examples of a file, and how many rows were left out; `hidden` allows missing labels.

    `content` is the text of the file if you have read it already.
    """
    spec = SPECS[name]
    rows = plain_cells(read_text(path) if content is None else content)
    columns = spec.bare
    if not columns or columns[-1] in rows[0][1]:
        columns = tuple(cell.strip() for cell in rows[0][1])
        del rows[0]
    text = column_of(path, columns, spec.text)
    pair = column_of(path, columns, spec.pair) if spec.pair else None
    known = not hidden or bool(set(spec.label) & set(columns))
    label = column_of(path, columns, spec.label) if known else None
    index = column_of(path, columns, IDS) if set(IDS) & set(columns) else None
    examples: list[Sentence] = []
    # The official train file of QQP has some rows that are broken.
    for line, row in sound(path, rows, len(columns), lenient=name == "qqp" and not hidden):
        given = None if label is None else label_of(spec, f"'{path}' line {line}", row[label])
        if given is None and not hidden and label is not None:
            if row[label] != DISPUTED:
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


def column_of(path: Path, columns: tuple[str, ...], names: tuple[str, ...]) -> int:
    """The place of the first of some columns that is there."""
    for name in names:
        if name in columns:
            return columns.index(name)
    raise UserError(
        f"'{path}' line 1 names no column '{names[-1]}', it has: "
        f"{', '.join(short(name) for name in columns)}."
    )


def sound(path: Path, rows: list[Cells], width: int, *, lenient: bool) -> Iterator[Cells]:
    """The rows with as many cells as there are columns."""
    for line, row in rows:
        if len(row) == width:
            yield line, row
        elif not lenient:
            raise UserError(
                f"'{path}' line {line} has {len(row)} cells instead of {width}: repair that row."
            )


def label_of(spec: Spec, place: str, given: str) -> int | float | None:
    """The label of a row as a number; None where it is hidden."""
    given = given.strip()
    if given in spec.labels:
        return spec.labels.index(given)
    if given in UNKNOWN:
        return None
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if spec.labels or not math.isfinite(value):
        wanted = ", ".join(spec.labels) or "a number"
        raise UserError(f"{place}: the label is '{short(given)}' instead of {wanted}.")
    return value


def lost_stops(examples: list[Sentence]) -> bool:
    """Whether no text ends with a full stop."""
    return not any(e.text.endswith(".") or str(e.pair).endswith(".") for e in examples)


def without_stop(example: Sentence) -> Sentence:
    """The example without full stops at the end of its texts."""
    pair = None if example.pair is None else example.pair.rstrip(" .")
    return replace(example, text=example.text.rstrip(" ."), pair=pair)
