"""The page on releases: its example runs, its YAML is read, and it names every field."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from electra.release.details import CardDetails, read_details

PAGE = (Path(__file__).parents[2] / "docs" / "release.md").read_text(encoding="utf-8")


def test_the_example(finished, bash, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first").symlink_to(finished)
    (script,) = re.findall(r"<!-- tested -->\n```bash\n(.*?)```", PAGE, re.S)
    said = bash(script)
    assert "  pip install weights/electra-tales-en\n" in said
    assert "farmer" in said
    out = tmp_path / "weights" / "electra-tales-en"
    listed = re.search(r"## What the package contains\n\n```\n(.*?)```", PAGE, re.S)[1]
    for path in (*out.iterdir(), *(out / "electra_tales_en").iterdir()):
        assert f"  {path.name}" in listed
    assert "| hardware | a laptop, 2 CPU cores |" in (out / "README.md").read_text()


def test_the_yaml(tmp_path):
    (text,) = re.findall(r"<!-- tested: card\.yaml -->\n```yaml\n(.*?)```", PAGE, re.S)
    (tmp_path / "card.yaml").write_text(text, encoding="utf-8")
    details = read_details(tmp_path / "card.yaml")
    assert len(details.data) == 2
    assert [e.title for e in details.evaluations] == ["GLUE", "BLiMP"]


@pytest.mark.parametrize("name", [field.name for field in fields(CardDetails)])
def test_every_field_is_in_the_yaml(name):
    assert re.search(rf"^{name}:", PAGE, re.M)
