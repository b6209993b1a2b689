"""Loading GLUE tasks from generated files, in the official and other layouts."""

from pathlib import Path

import pytest

from electra.errors import UserError
from electra.tasks.glue import GLUE, SPECS, available_tasks, load_glue


def write(path: Path, *rows: tuple[str, ...], mark: str = "", end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        mark + "".join("\t".join(row) + end for row in rows), encoding="utf-8", newline=""
    )


NLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse"
NLI = (*NLI.split(), "sentence2_parse", "sentence1", "sentence2", "label1")
STS = ("index", "genre", "filename", "year", "old_index", "source1", "source2")
STS = (*STS, "sentence1", "sentence2")


def official(root: Path) -> Path:
    """A GLUE folder with the columns of the official files."""
    write(
        root / "CoLA/train.tsv", ("gj", "1", "", 'He "slept".'), ("gj", "0", "*", "Slept he the.")
    )
    write(root / "CoLA/dev.tsv", ("gj", "0", "*", "A cats"))
    write(root / "CoLA/test.tsv", ("index", "sentence"), ("0", "It rains."), ("1", '"Well'))
    write(root / "SST-2/train.tsv", ("sentence", "label"), ("fine ", "1"), ("dull ", "0"))
    write(root / "SST-2/dev.tsv", ("sentence", "label"), ("good ", "1"))
    write(root / "SST-2/test.tsv", ("index", "sentence"), ("0", "long "))
    head = ("#1 ID", "#2 ID", "#1 String", "#2 String")
    row = ("70", "71", '" A "', "B")
    write(root / "MRPC/train.tsv", ("Quality", *head), ("1", *row), mark="\ufeff", end="\r\n")
    write(root / "MRPC/dev.tsv", ("Quality", *head), ("0", *row), mark="\ufeff", end="\r\n")
    write(root / "MRPC/test.tsv", ("index", *head), ("0", *row), mark="\ufeff", end="\r\n")
    row = ("0", *STS[1:7], "A cat.", "A dog.")
    write(root / "STS-B/train.tsv", (*STS, "score"), (*row, "2.500"))
    write(root / "STS-B/dev.tsv", (*STS, "score"), (*row, "5.000"))
    write(root / "STS-B/test.tsv", STS, row)
    head = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
    broken = ("7", "1", "2", "a question that breaks off")
    write(root / "QQP/train.tsv", head, ("5", "1", "2", "Why?", "How?", "0"), broken)
    write(root / "QQP/dev.tsv", head, ("6", "1", "2", "Why?", "Wherefore?", "1"))
    write(root / "QQP/test.tsv", ("id", "question1", "question2"), ("0", "Who?", "What?"))
    row = ("0", *NLI[1:8], "It rains.", "It is wet.", "neutral")
    write(root / "MNLI/train.tsv", (*NLI, "gold_label"), (*row, "entailment"), (*row, "-"))
    many = (*NLI, "label2", "label3", "label4", "label5", "gold_label")
    more = (*row, "neutral", "neutral", "neutral", "neutral")
    write(root / "MNLI/dev_matched.tsv", many, (*more, "neutral"))
    write(root / "MNLI/dev_mismatched.tsv", many, (*more, "contradiction"), (*more, "neutral"))
    write(root / "MNLI/test_matched.tsv", NLI[:-1], row[:-1])
    write(root / "MNLI/test_mismatched.tsv", NLI[:-1], row[:-1], row[:-1])
    write(
        root / "diagnostic/diagnostic.tsv", ("index", "sentence1", "sentence2"), ("0", "A.", "B.")
    )
    head = ("index", "question", "sentence")
    write(root / "QNLI/train.tsv", (*head, "label"), ("0", "Who?", "He.", "not_entailment"))
    write(root / "QNLI/dev.tsv", (*head, "label"), ("0", "Who?", "She.", "entailment"))
    write(root / "QNLI/test.tsv", head, ("0", "Who?", "They."))
    head = ("index", "sentence1", "sentence2")
    for folder, labels in (("RTE", ("entailment", "not_entailment")), ("WNLI", ("0", "1"))):
        rows = [(str(i), "A.", "B.", label) for i, label in enumerate(labels)]
        write(root / folder / "train.tsv", (*head, "label"), *rows)
        write(root / folder / "dev.tsv", (*head, "label"), *rows)
        write(root / folder / "test.tsv", head, ("0", "A.", "B."))
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return official(tmp_path_factory.mktemp("glue"))


FIRST = {  # text, pair and label of the first example of train
    "cola": ('He "slept".', None, 1),
    "sst2": ("fine ", None, 1),
    "mrpc": ('" A "', "B", 1),
    "stsb": ("A cat.", "A dog.", 2.5),
    "qqp": ("Why?", "How?", 0),
    "mnli": ("It rains.", "It is wet.", 1),
    "qnli": ("Who?", "He.", 1),
    "rte": ("A.", "B.", 0),
    "wnli": ("A.", "B.", 0),
}


@pytest.mark.parametrize("name", GLUE)
def test_official_files(root, name):
    task = load_glue(name, root)
    first = task.splits["train"][0]
    assert (first.text, first.pair, first.label) == FIRST[name]
    assert all(e.label is not None for s in ("train", "dev") for e in task.splits[s])
    assert [e.label for e in task.splits["test"]] == [None] * len(task.splits["test"])
    assert task.splits["test"][0].id == "0"
    (folder,) = (p for p in root.iterdir() if p.name.lower().replace("-", "") == name)
    assert load_glue(name, folder).splits == task.splits


def test_metrics_and_epochs_are_those_of_the_paper(root):
    tasks = {name: load_glue(name, root) for name in GLUE}
    metrics = {name: task.metric for name, task in tasks.items()}
    assert metrics.pop("cola") == "matthews"
    assert metrics.pop("stsb") == "spearman"
    assert set(metrics.values()) == {"accuracy"}
    assert [n for n, t in tasks.items() if t.epochs == 10] == ["stsb", "rte"]
    assert [n for n, t in tasks.items() if t.swap] == ["mrpc", "stsb"]
    assert [n for n, t in tasks.items() if t.kind == "regress"] == ["stsb"]
    assert tasks["mnli"].labels == ("contradiction", "entailment", "neutral")
    assert tasks["qnli"].labels == tasks["rte"].labels == ("entailment", "not_entailment")
    assert tasks["cola"].labels == ("0", "1")
    assert {t.max_length for t in tasks.values()} == {128}


def test_splits_of_mnli(root):
    splits = load_glue("mnli", root).splits
    sizes = {name: len(rows) for name, rows in splits.items()}
    assert sizes == {
        **{"train": 1, "dev": 1, "dev_mismatched": 2},
        **{"test": 1, "test_mismatched": 2, "ax": 1},
    }
    assert splits["dev"][0].label == 2
    assert splits["ax"][0].pair == "B."


def test_dropped_rows_are_reported(root):
    assert load_glue("cola", root).warnings == ()
    (warning,) = load_glue("qqp", root).warnings
    assert "1 rows of 'train.tsv' are dropped" in warning
    (warning,) = load_glue("mnli", root).warnings
    assert "1 rows of 'train.tsv' are dropped" in warning


@pytest.mark.parametrize("folder", ["sts-b", "stsb", "STSB", "STS"])
def test_alternative_folder_names(tmp_path, folder):
    row = ("A cat.", "A dog.", "1")
    write(tmp_path / folder / "train.tsv", ("sentence1", "sentence2", "score"), row, row)
    write(tmp_path / folder / "dev.tsv", ("sentence1", "sentence2", "score"), row)
    assert load_glue("STS-B", tmp_path).splits["dev"][0].label == 1.0
    assert available_tasks(tmp_path) == ["stsb"]


def test_task_folder_with_any_name(tmp_path):
    rows = [("sentence", "label"), ("good", "1"), ("bad", "0")]
    write(tmp_path / "mine/train.tsv", *rows)
    write(tmp_path / "mine/dev.tsv", *rows)
    assert len(load_glue("sst2", tmp_path / "mine").splits["dev"]) == 2


def test_available_tasks(root, tmp_path):
    assert available_tasks(root) == list(GLUE)
    assert available_tasks(root / "RTE") == ["rte"]
    assert available_tasks(tmp_path) == []


def test_mrpc_in_the_original_format(tmp_path):
    head = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    rows = [(str(i % 2), "1", "2", f"text {i}", f"pair {i}") for i in range(40)]
    write(tmp_path / "mrpc/msr_paraphrase_train.txt", head, *rows, mark="\ufeff")
    write(tmp_path / "mrpc/msr_paraphrase_test.txt", head, rows[1], mark="\ufeff")
    task = load_glue("mrpc", tmp_path)
    assert task.splits["test"][0].label == 1
    assert len(task.splits["dev"]) == 4
    assert any("no dev file" in warning for warning in task.warnings)


def qqp_rows(count: int) -> list[tuple[str, ...]]:
    return [(str(i), "1", "2", f"Why {i}?", f"How {i}?", str(i % 2)) for i in range(count)]


def test_dev_split_is_deterministic(tmp_path):
    head = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
    write(tmp_path / "a/QQP/train_partial.tsv", head, *qqp_rows(200))
    write(tmp_path / "b/QQP/train_partial.tsv", head, *reversed(qqp_rows(200)))
    task = load_glue("qqp", tmp_path / "a")
    assert len(task.splits["dev"]) == 20
    assert len(task.splits["train"]) == 180
    assert any("'train_partial.tsv' is used" in warning for warning in task.warnings)
    assert any("no dev file" in w and "not comparable" in w for w in task.warnings)
    other = load_glue("qqp", tmp_path / "b").splits["dev"]
    assert {e.id for e in other} == {e.id for e in task.splits["dev"]}


def test_full_stops_are_removed_if_mnli_train_has_none(tmp_path):
    head = ("premise", "hypothesis", "label")
    write(tmp_path / "MNLI/train_partial.tsv", head, ("It rains", "Is it wet?", "entailment"))
    row = ("It rains . . .", "It is wet.", "neutral")
    write(tmp_path / "MNLI/dev_matched.tsv", head, row)
    write(tmp_path / "AX/AX.tsv", ("index", "sentence1", "sentence2"), ("0", "A.b.", "B"))
    task = load_glue("mnli", tmp_path)
    texts = [(e.text, e.pair) for split in ("train", "dev", "ax") for e in task.splits[split]]
    assert texts == [("It rains", "Is it wet?"), ("It rains", "It is wet"), ("A.b", "B")]
    assert any("full stop" in warning for warning in task.warnings)
    write(tmp_path / "MNLI/dev_matched.tsv", head, ("It rains", "It is wet", "neutral"))
    assert not any("full stop" in warning for warning in load_glue("mnli", tmp_path).warnings)


def test_official_mnli_keeps_its_full_stops(root):
    assert load_glue("mnli", root).splits["dev"][0].text == "It rains."


@pytest.mark.parametrize(
    ("name", "rows", "words"),
    [
        (
            "rte",
            [("index", "sentence1", "label"), ("0", "A", "entailment")],
            "no column 'sentence2'",
        ),
        ("rte", [("sentence1", "sentence2"), ("A", "B")], "no column 'label', it has: sentence1"),
        (
            "rte",
            [("sentence1", "sentence2", "label"), ("A", "B")],
            "line 2 has 2 cells instead of 3",
        ),
        ("rte", [("sentence1", "sentence2", "label"), ("A", "B", "0")], "line 2: the label is '0'"),
        ("rte", [("sentence1", "sentence2", "label"), ("A", "B", "-1")], "line 2 has no label"),
        ("stsb", [("sentence1", "sentence2", "score"), ("A", "B", "nan")], "instead of a number"),
        ("cola", [("gj", "1", "A cat.")], "line 1 has 3 cells instead of 4"),
        ("sst2", [("sentence", "label")], "has no rows"),
    ],
)
def test_invalid_files_are_refused(tmp_path, name, rows, words):
    write(tmp_path / name / "train.tsv", *rows)
    with pytest.raises(UserError, match=words):
        load_glue(name, tmp_path)


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="did you mean 'mnli'"):
        load_glue("mnl", tmp_path)
    with pytest.raises(UserError, match="no train file of rte"):
        load_glue("rte", tmp_path)
    with pytest.raises(UserError, match="There is no folder"):
        load_glue("rte", tmp_path / "nowhere")
    for name in ("train_a.tsv", "train_b.tsv"):
        write(tmp_path / "RTE" / name, ("sentence1", "sentence2", "label"))
    with pytest.raises(UserError, match="several train files"):
        load_glue("rte", tmp_path)


def test_folder_names_are_unique():
    names = [name for spec in SPECS.values() for name in spec.folders]
    assert len(names) == len(set(names))


def test_test_files_keep_all_rows(tmp_path):
    """The GLUE server expects every row; only the train file of QQP has malformed ones."""
    head, row = ("id", "question1", "question2"), ("0", "Who?", "What?")
    write(tmp_path / "QQP/train.tsv", (*head, "is_duplicate"), *((*row, i) for i in "01"))
    write(tmp_path / "QQP/dev.tsv", (*head, "is_duplicate"), (*row, "1"))
    write(tmp_path / "QQP/test.tsv", head, row, ("1", "Who?"))
    with pytest.raises(UserError, match=r"test\.tsv' line 3 has 2 cells instead of 3"):
        load_glue("qqp", tmp_path)


def test_similarity_must_be_finite(tmp_path):
    head = ("sentence1", "sentence2", "score")
    write(tmp_path / "STS-B/train.tsv", head, ("a", "b", "1.5"), ("c", "d", "inf"))
    with pytest.raises(UserError, match="line 3: the label is 'inf' instead of a number"):
        load_glue("stsb", tmp_path)


def test_parent_folder_with_the_name_of_the_task(tmp_path):
    rows = [("sentence1", "sentence2", "label"), ("a", "b", "0"), ("c", "d", "1")]
    for split in ("train", "dev"):
        write(tmp_path / f"wnli/WNLI/{split}.tsv", *rows)
    assert load_glue("wnli", tmp_path / "wnli").splits["dev"]


def test_diagnostic_file_in_the_mnli_folder_is_preferred(tmp_path):
    root = official(tmp_path)
    write(root / "MNLI/AX.tsv", ("index", "sentence1", "sentence2"), ("0", "C.", "D."))
    assert [e.text for e in load_glue("mnli", root).splits["ax"]] == ["C."]
