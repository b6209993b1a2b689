"""What kind of task a file holds, from its columns."""

import pytest

from electra.tasks.infer_task import infer_task


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.csv", "text,label\nx,good\ny,bad\n", "classify"),
        ("a.csv", "text,label\nx,1\ny,0\n", "classify"),
        ("a.csv", "text,label\nx,1.0\ny,2\n", "classify"),
        ("a.csv", "text,label\nx,1.5\ny,2\n", "regress"),
        ("a.csv", "text,label\n" + "".join(f"x{i},{i}\n" for i in range(101)), "regress"),
        ("a.csv", "text,label\n" + "".join(f"x{i},{i}\n" for i in range(100)), "classify"),
        ("a.csv", "text,label\nx,1.5\ny,none\n", "classify"),
        ("a.csv", "premise,hypothesis,label\nx,y,1\nx,z,0\n", "classify"),
        ("a.csv", "text,choice0,choice1,label\nx,y,z,1\n", "choice"),
        ("a.jsonl", '{"text": "x", "options": ["a", "b"], "label": 0}\n', "choice"),
        ("a.csv", "question,context,answer\nwho,me,me\n", "qa"),
        ("a.csv", "words,tags\na b,N V\n", "tag"),
        ("a.conll", "a N\nb V\n", "tag"),
        ("a.csv", "body,stars\nx,1\n", "classify"),  # loading it names what is missing
    ],
)
def test_by_columns(tmp_path, name, content, kind):
    (tmp_path / name).write_text(content)
    assert infer_task(tmp_path / name) == kind


def test_a_named_label_and_a_folder(tmp_path):
    (tmp_path / "train.csv").write_text("text,stars,label\nx,1.5,a\ny,2,b\n")
    assert infer_task(tmp_path) == "classify"
    assert infer_task(tmp_path, "stars") == "regress"
