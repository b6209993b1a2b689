"""What the documents print is what happens: README's commands, and excerpts of the code."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from electra.model_packages import installed_models

ROOT = Path(__file__).parent.parent


def test_the_commands_of_the_readme(corpus, tmp_path):
    block = re.search(r"<!-- tested -->\n```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert block is not None
    (tmp_path / "my-text.txt").write_text(corpus.read_text() * 3)
    who, how = ("cat", "dog", "hen"), ("in", "out")
    labelled = [f"the {one} is {other},{other}" for one in who for other in how]
    (tmp_path / "my-labels.csv").write_text("\n".join(["text,label", *labelled * 8]) + "\n")
    lines = [line for line in block[1].splitlines() if line.strip()]
    assert len(lines) >= 6
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "electra"
        done = subprocess.run(
            [sys.executable, "-m", "electra", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()


@pytest.mark.skipif("electra-small-en" not in installed_models(), reason="not installed")
def test_what_the_released_model_says(electra):
    """Without the fine-tuning, which takes a minute."""
    block = re.search(
        r"<!-- released -->\n```console\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    assert block is not None
    shown = re.findall(r"^\$ electra (.*)\n(.*)$", block[1], re.M)
    assert [command.split()[0] for command, _ in shown] == ["detect", "detect", "fill", "finetune"]
    for command, line in shown[:3]:
        code, out, _ = electra(*shlex.split(command))
        assert code == 0
        assert without_numbers(line) in without_numbers(out).splitlines()


def without_numbers(text: str) -> str:
    """The last digit of a percentage depends on the processor."""
    return re.sub(r"[\d.]+%", "%", text)


def test_make_knows_the_commands_of_the_readme():
    rules = (ROOT / "Makefile").read_text()
    for name in re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.M):
        assert re.search(rf"^{name}:", rules, re.M), name


def test_the_reading_list_has_the_length_of_the_files():
    """To a twentieth, so that not every change of a file changes the README."""
    text = (ROOT / "README.md").read_text()
    listed = re.findall(r"\]\((src/electra/\S+\.py)\) \| (\d+) \|", text)
    summary = re.search(r"these (\d+) files, about ([\d,]+) lines in all", text)
    assert summary is not None
    lengths = [len((ROOT / path).read_text().splitlines()) for path, _ in listed]
    wrong = {
        path: length
        for (path, stated), length in zip(listed, lengths, strict=True)
        if abs(int(stated) - length) > 0.05 * length
    }
    assert not wrong, f"README.md, Reading the code: {wrong}"
    assert int(summary[1]) == len(listed) >= 10
    assert abs(int(summary[2].replace(",", "")) - sum(lengths)) < 0.05 * sum(lengths)


@pytest.mark.parametrize("page", sorted(p.name for p in (ROOT / "docs").glob("*.md")))
def test_excerpts_are_the_code(page):
    text = (ROOT / "docs" / page).read_text()
    for file, excerpt in re.findall(r"<!-- from (src/\S+) -->\n```\w*\n(.*?)```", text, re.S):
        assert excerpt in (ROOT / file).read_text(), f"{page}: the excerpt of {file} is old"


LINKING = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]


def anchors(page: Path) -> set[str]:
    """The headings of a page, as the site and GitHub name them in links."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    heads = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize(
    "page", [*LINKING, *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]
)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        file, _, anchor = link.partition("#")
        if "://" not in link:
            target = (ROOT / page).parent / file if file else ROOT / page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link
