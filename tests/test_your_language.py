"""The guide for languages: its commands run, and what it says about the samples is true."""

import re
from pathlib import Path

import pytest

from electra.text.inspect import Report, inspect_tokenizer
from electra.text.tokenizer import load_tokenizer, train_tokenizer

PAGE = (Path(__file__).parents[1] / "docs" / "your-language.md").read_text(encoding="utf-8")


@pytest.fixture
def report(tmp_path):
    """Inspect the tokenizer of a language on its sample."""

    def report(language: str) -> Report:
        text = tmp_path / f"{language}.txt"
        return inspect_tokenizer(load_tokenizer(tmp_path / f"tokenizer-{language}"), [text])

    return report


def test_the_commands_of_the_guide(bash, tmp_path, report):
    (script,) = re.findall(r"<!-- tested -->\n```bash\n(.*?)```", PAGE, re.S)
    said = bash(script)
    assert said.count("accents lost") == 4  # a line of each report
    assert "shards-ja: prepared" in said
    assert list((tmp_path / "runs" / "ja" / "checkpoints").glob("step-*/discriminator"))
    for language in ("vi", "ja", "de"):
        found = report(language)
        assert (found.unknown_rate, found.accents_lost_rate, found.changed_rate) == (0, 0, 0)
        assert not [w for w in found.warnings if w.startswith(("accents", "text", "high"))]
    german = load_tokenizer(tmp_path / "tokenizer-de")
    assert german.decode(german.encode("Bücher für Schüler").ids) == "Bücher für Schüler"
    # Without the options of the guide, the accents are lost and the command says so.
    for language in ("vi", "ja", "de"):
        text = tmp_path / f"{language}.txt"
        plain = train_tokenizer([text], tmp_path / f"plain-{language}", vocab_size=300)
        warnings = inspect_tokenizer(plain, [text]).warnings
        assert any(w.startswith("accents lost") and "--keep-accents" in w for w in warnings)


def test_the_lines_of_the_report_are_those_of_the_code():
    source = Path(__file__).parents[1] / "src/electra/text/progress.py"
    table = PAGE.split("| line | good |")[1].split("\n\n")[0]
    lines = [row.split("|")[1].strip() for row in table.splitlines()[2:]]
    assert len(lines) == 6
    for line in lines:
        assert f'("{line}"' in source.read_text(encoding="utf-8")
