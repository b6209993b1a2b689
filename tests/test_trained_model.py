"""The page for newcomers: its commands and code run, and print what the page says."""

import re
from pathlib import Path

import pytest

from electra.model_packages import RELEASED, installed_models

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/trained-model.md").read_text(encoding="utf-8")
NAME = "electra-small-en"

pytestmark = pytest.mark.skipif(NAME not in installed_models(), reason=f"run  {RELEASED[NAME]}")


def blocks(language: str) -> list[str]:
    return re.findall(rf"<!-- tested -->\n```{language}\n(.*?)```", PAGE, re.S)


def test_detect_and_fill(bash):
    said = bash(blocks("bash")[0])
    (printed,) = re.findall(r"\n\n```\n(.*?)```", PAGE, re.S)
    percentage = re.compile(r"([\d.]+)%")
    assert percentage.sub("", said) == percentage.sub("", printed)
    found, stated = ([float(x) for x in percentage.findall(text)] for text in (said, printed))
    assert found == pytest.approx(stated, abs=0.2)  # the last digit depends on the processor


def test_finetune(bash, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    script = blocks("bash")[1]
    assert "--seeds 1\n" in script
    said = bash(script.replace("--seeds 1\n", "--seeds 1 epochs=0.5\n"))
    assert '"label": ' in said


def test_the_code(capsys):
    ours, transformers = blocks("python")
    exec(ours, {})
    assert capsys.readouterr().out == "river\n"
    found: dict[str, object] = {}
    exec(transformers, found)
    assert found["model"].config.num_labels == 2
