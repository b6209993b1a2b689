"""Loading tagging tasks from CoNLL files, CoNLL-U files and tables."""

import json

import pytest

from electra.errors import UserError
from electra.tasks.conll import load_tags, read_conll, read_tagged_examples

CHUNKS = """The DT B-NP
barn NN I-NP
burns VBZ B-VP

# # B-NP
five CD I-NP
. . O
"""


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return folder


def test_reads_words_tags_and_sentences(tmp_path):
    write(tmp_path, train=CHUNKS, valid=CHUNKS, test=CHUNKS)
    task = load_tags("mine", tmp_path)
    assert {name: len(split) for name, split in task.splits.items()} == dict.fromkeys(
        ("train", "dev", "test"), 2
    )
    first, second = task.splits["train"]
    assert first.words == ("The", "barn", "burns")
    assert first.tags == ("B-NP", "E-NP", "S-VP")  # BIOES
    assert second.words == ("#", "five", ".")  # not a comment
    assert task.labels == ("O", "B-NP", "E-NP", "S-VP")
    assert (task.kind, task.metric, task.max_length, task.epochs) == ("tag", "f1", 256, 3)
    assert task.columns["scheme"] == "IOB2"
    assert task.warnings == ()


def test_label_selects_the_tag_column(tmp_path):
    write(tmp_path, train=CHUNKS, dev=CHUNKS)
    task = load_tags("mine", tmp_path, label="2")
    assert task.splits["dev"][0].tags == ("DT", "NN", "VBZ")
    assert task.metric == "accuracy"
    assert task.labels == ("#", ".", "CD", "DT", "NN", "VBZ")
    assert load_tags("mine", tmp_path, label="-2").labels == task.labels
    for column in (0, 1, 4, -4):
        with pytest.raises(UserError, match="count from 1"):
            load_tags("mine", tmp_path, label=str(column))


def test_document_marks_line_ends_and_blanks(tmp_path):
    text = (
        "\ufeff-DOCSTART- -X- O\r\n\r\nA\u00a0B\tx\tB-X\r\n \r\n\r\n-DOCSTART- -X- O\r\nc\ty\tO\r\n"
    )
    (tmp_path / "one").write_bytes(text.encode())
    sentences = read_conll(tmp_path / "one")
    assert [(s.words, s.tags, list(s.lines)) for s in sentences] == [
        (("A\u00a0B",), ("B-X",), [3]),
        (("c",), ("O",), [7]),
    ]


def test_conllu(tmp_path):
    rest = "\t_" * 6
    rows = [
        "# sent_id = 1",
        "# text = im Haus",
        f"1-2\tim\t_\t_{rest}",
        f"1\tin\tin\tADP{rest}",
        f"2\tdem\tder\tDET{rest}",
        f"2.1\tx\tx\tX{rest}",
        f"3\t#\t#\tSYM{rest}",
    ]
    (tmp_path / "train.conllu").write_text("\n".join(rows) + "\n\n# newpar\n" + rows[3] + "\n")
    one, two = read_conll(tmp_path / "train.conllu")
    assert one.words == ("in", "dem", "#")
    assert one.tags == ("ADP", "DET", "SYM")
    assert two.words == ("in",)


def test_comments_with_as_many_columns_as_words_are_skipped(tmp_path):
    (tmp_path / "a").write_text("# id 17 domain=en\nx _ _ O\n\n# id 18 domain=en\ny _ _ B-X\n")
    assert [s.words for s in read_conll(tmp_path / "a")] == [("x",), ("y",)]


@pytest.mark.parametrize(
    ("train", "dev"),
    [
        ("train.tsv", "dev.tsv"),
        ("train-vi.tsv", "dev-vi.tsv"),
        ("eng.train", "eng.testa"),
        ("de-ud-train.conllu", "de-ud-dev.conllu"),
        ("train.txt.gz", "validation.txt.gz"),
    ],
)
def test_split_files_are_found_by_name(tmp_path, train, dev):
    import gzip

    for name, word in ((train, "a"), (dev, "b"), ("other-dev.md", "c")):
        content = f"{word} B-X\n".encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    if train == "train.txt.gz":
        (tmp_path / "other-dev.md").unlink()
    splits = load_tags("mine", tmp_path).splits
    assert splits["train"][0].words == ("a",)
    assert splits["dev"][0].words == ("b",)


def test_two_files_for_one_split_are_refused(tmp_path):
    for name in ("train.txt", "dev-a.txt", "dev-b.txt"):
        (tmp_path / name).write_text("a O\n")
    with pytest.raises(UserError, match=r"several files for dev .*dev-a.txt.*dev-b.txt"):
        load_tags("mine", tmp_path)


def test_parent_folder(tmp_path):
    for folder in (tmp_path / "conll2003", tmp_path / "tagging" / "conll2000"):
        folder.mkdir(parents=True)
        write(folder, train=CHUNKS, dev=CHUNKS)
    assert load_tags("conll2003", tmp_path).splits["dev"]
    assert load_tags("conll2000", tmp_path).splits["dev"]
    with pytest.raises(UserError, match="no train file"):
        load_tags("conll2001", tmp_path)
    with pytest.raises(UserError, match="There is no file or folder"):
        load_tags("conll2000", tmp_path / "nowhere")


def many(count: int) -> str:
    return "\n".join(f"word{i} B-X\n" for i in range(count))


def test_dev_split_is_made_from_train(tmp_path):
    path = tmp_path / "all.conll"
    path.write_text(many(400) + "\n" + many(400), encoding="utf-8")
    task = load_tags("mine", path)
    train, dev = task.splits["train"], task.splits["dev"]
    assert len(train) + len(dev) == 800
    assert 40 <= len(dev) <= 120
    assert not {e.words for e in train} & {e.words for e in dev}  # equal sentences stay together
    assert "no dev file" in task.warnings[0]
    # adding sentences moves few of the others
    path.write_text(many(500), encoding="utf-8")
    grown = {e.words for e in load_tags("mine", path).splits["dev"]}
    before = {e.words for e in dev}
    assert len(before & grown) >= 0.8 * len(before)
    path.write_text(many(2), encoding="utf-8")
    assert [len(s) for s in load_tags("mine", path).splits.values()] == [1, 1]
    path.write_text(many(1), encoding="utf-8")
    with pytest.raises(UserError, match="too few different"):
        load_tags("mine", path)


def test_iob1_is_converted(tmp_path):
    write(tmp_path, train="a I-X\nb B-X\nc I-X\nd O\n", dev="a I-X\n")
    task = load_tags("mine", tmp_path)
    assert task.columns["scheme"] == "IOB1"
    assert task.splits["train"][0].tags == ("S-X", "B-X", "E-X", "O")


def test_scheme_violations(tmp_path):
    good = "a B-X\nb I-X\nc O\n\n" * 5
    write(tmp_path, train=good + "a B-X\nb I-Y\n", dev=good)
    with pytest.raises(UserError, match=r"train.txt' line 22: .* IOB2, but 'I-Y' continues"):
        load_tags("mine", tmp_path)
    write(tmp_path, train=good, dev=good + "a O\nb I-X\n\nc I-X\n")
    task = load_tags("mine", tmp_path)
    assert task.splits["dev"][5].tags == ("O", "S-X")
    assert "dev.txt' line 22 and 1 more violates the scheme" in task.warnings[0]


def test_tags_missing_from_train_are_reported(tmp_path):
    write(tmp_path, train="a B-X\n\nb O\n", dev="a B-X\nb I-X\n\nc B-Y\n")
    task = load_tags("mine", tmp_path)
    assert task.labels == ("O", "S-X")
    assert any("B-X, E-X, S-Y" in warning for warning in task.warnings)


def test_files_without_tags(tmp_path):
    write(tmp_path, train=CHUNKS, dev=CHUNKS, test="The\nbarn\n\nburns\n")
    test = load_tags("mine", tmp_path).splits["test"]
    assert [e.words for e in test] == [("The", "barn"), ("burns",)]
    assert all(e.tags is None for e in test)
    write(tmp_path, train=CHUNKS, dev="The\nbarn\n")
    with pytest.raises(UserError, match=r"dev.txt' line 1 has no tags"):
        load_tags("mine", tmp_path)
    write(tmp_path, train="The\nbarn\n")
    with pytest.raises(UserError, match=r"train.txt' line 1 has no tags"):
        load_tags("mine", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a x O\nb O\n", r"line 2 has 2 columns, where the first word has 3"),
        ("a x O\n# b\nc x O\n", r"line 2 has 2 columns, where the first word has 3"),
        ("a\tO\nb\t\n", r"line 2 has no tag in column 2"),
        ("\n\n", "is empty"),
        ("-DOCSTART- O\n\n", "holds no words|columns"),
        ("a O\n\0\n", "NUL byte"),
    ],
)
def test_invalid_files_are_refused(tmp_path, text, message):
    (tmp_path / "bad.txt").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        load_tags("mine", tmp_path / "bad.txt")
    assert "bad.txt" in str(error.value)


def test_invalid_utf8_is_refused(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"a O\n\xe4 O\n")
    with pytest.raises(UserError, match="line 2"):
        load_tags("mine", tmp_path / "bad.txt")


def lines(*records) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_json_lines(tmp_path):
    (tmp_path / "train.jsonl").write_text(
        lines({"words": ["a", "b c"], "tags": ["B-X", "I-X"]}, {"words": ["d"], "tags": ["O"]})
    )
    (tmp_path / "dev.jsonl").write_text(lines({"words": "a b", "tags": "B-X O"}))
    (tmp_path / "test.jsonl").write_text(lines({"words": ["a"]}))
    task = load_tags("tag", tmp_path)
    assert task.splits["train"][0].words == ("a", "b c")
    assert task.splits["train"][0].tags == ("B-X", "E-X")
    assert task.splits["dev"][0].words == ("a", "b")
    assert task.splits["test"][0].tags is None


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_tables(tmp_path, ending):
    mark = "\t" if ending == "tsv" else ","
    rows = [("id", "satz", "wortart"), ("1", "der Hof", "DET NOUN"), ("2", "ja", "X")]
    text = "\n".join(mark.join(row) for row in rows)
    for split in ("train", "dev"):
        (tmp_path / f"{split}.{ending}").write_text(text)
    task = load_tags("tag", tmp_path, text="satz", label="wortart")
    assert task.splits["dev"][0].words == ("der", "Hof")
    assert task.labels == ("DET", "NOUN", "X")
    with pytest.raises(UserError, match="wortar"):
        load_tags("tag", tmp_path, text="satz", label="wortar")


def test_tsv_without_header_is_conll(tmp_path):
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("der\tDET\tB-X\nHof\tNOUN\tI-X\n")
    assert load_tags("tag", tmp_path).labels == ("B-X", "E-X")
    assert load_tags("tag", tmp_path, label="2").labels == ("DET", "NOUN")
    with pytest.raises(UserError, match="by its number"):
        load_tags("tag", tmp_path, label="pos")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"words": ["a", "b"], "tags": ["O"]}, "2 words and 1 tags"),
        ({"words": ["a"], "tags": [3]}, "by name"),
        ({"words": [], "tags": []}, "one or more strings"),
        ({"words": 7, "tags": ["O"]}, "number"),
    ],
)
def test_invalid_records_are_refused(tmp_path, record, message):
    (tmp_path / "train.jsonl").write_text(lines({"words": ["a"], "tags": ["O"]}, record))
    with pytest.raises(UserError, match=message) as error:
        load_tags("tag", tmp_path / "train.jsonl")
    assert "train.jsonl' line 2" in str(error.value)


def test_rows_without_words_are_skipped(tmp_path):
    records = [{"words": [f"w{i}"], "tags": ["O"]} for i in range(20)]
    del records[4]["words"]
    path = tmp_path / "train.jsonl"
    path.write_text(lines(*records))
    task = load_tags("tag", path)
    assert "1 of 20 rows" in task.warnings[0]
    assert "first on line 5" in task.warnings[0]
    assert sum(len(split) for split in task.splits.values()) == 19
    with pytest.warns(UserWarning, match="first on line 5"):
        assert len(read_tagged_examples(path, task.columns)) == 19


def test_prediction_does_not_need_the_column_of_the_tags(tmp_path):
    path = tmp_path / "new.jsonl"
    path.write_text(lines({"words": ["a", "b"]}))
    (sentence,) = read_tagged_examples(path, {"label": "ner"})
    assert (sentence.words, sentence.tags) == (("a", "b"), None)


def test_read_tagged_examples(tmp_path):
    write(tmp_path, train=CHUNKS, dev=CHUNKS)
    task = load_tags("tag", tmp_path, label="3")
    assert read_tagged_examples(tmp_path / "dev.txt", task.columns) == task.splits["dev"]
    plain = load_tags("tag", tmp_path, label="2")
    assert read_tagged_examples(tmp_path / "dev.txt", plain.columns) == plain.splits["dev"]
    (tmp_path / "new.jsonl").write_text(lines({"words": ["The", "barn"]}))
    (example,) = read_tagged_examples(tmp_path / "new.jsonl", {"scheme": "IOB2"})
    assert example.words == ("The", "barn")
    assert example.tags is None


def test_no_break_space_in_a_word_and_document_marks(tmp_path):
    (tmp_path / "a").write_text("-DOCSTART-\n\nA\u00a0B  x B-X \n", encoding="utf-8")
    (found,) = read_conll(tmp_path / "a")
    assert (found.words, found.tags) == (("A\u00a0B",), ("B-X",))


@pytest.mark.parametrize("label", ["-1", "2", "3"])
def test_a_file_of_words_only_has_no_tags(tmp_path, label):
    write(tmp_path, train=CHUNKS, dev=CHUNKS, test="The\nbarn\n\nburns\n")
    task = load_tags("mine", tmp_path, label=label)
    assert [e.tags for e in task.splits["test"]] == [None, None]
    assert read_tagged_examples(tmp_path / "test.txt", task.columns) == task.splits["test"]
    write(tmp_path, train="The\nbarn\n")
    with pytest.raises(UserError, match=r"train.txt' line 1 has no tags"):
        load_tags("mine", tmp_path, label=label)


def test_dev_file_named_like_train_is_preferred(tmp_path):
    for name, word in (("train-vi", "a"), ("dev-vi", "b"), ("dev", "c"), (".train", "d")):
        (tmp_path / f"{name}.tsv").write_text(f"{word}\tB-X\n")
    splits = load_tags("mine", tmp_path).splits
    assert [splits[name][0].words for name in ("train", "dev")] == [("a",), ("b",)]
