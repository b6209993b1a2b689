"""docs/studies.md: its example runs, and what it names is there."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from electra.cli import app
from electra.studies.ablation import ABLATION
from electra.studies.paper import STUDIES
from electra.studies.study import SCALES

PAGE = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
OPTIONS = {
    option
    for p in typer.main.get_command(app).commands["study"].params
    for option in (*p.opts, *p.secondary_opts)
}


def test_the_example(corpus, labels, bash, tmp_path):
    scripts = re.findall(r"<!-- tested -->\n```bash\n(.*?)```", PAGE, re.S)
    (tmp_path / "my-text.txt").write_bytes(corpus.read_bytes())
    (tmp_path / "my-labels.csv").write_bytes((labels / "train.csv").read_bytes())
    said = bash("".join(scripts))
    assert "# Weights that generator and discriminator share" in said
    made = {str(p.relative_to(tmp_path)) for p in (tmp_path / "studies" / "tying").rglob("*")}
    for name in ("page.md", "table.md", "figure.png", "results.jsonl", "runs/all-0", "runs"):
        assert f"studies/tying/{name}" in made
    results = (tmp_path / "studies" / "mine" / "results.jsonl").read_text().splitlines()
    arms = [json.loads(line)["arm"] for line in results]
    assert arms == ["recipe", "wide", "optim.lr=1e-3"]


def test_options_exist():
    used = 0
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.S):
        for line in block.splitlines():
            if line.startswith("electra study"):
                words = shlex.split(line)
                assert words[2] in {*STUDIES, ABLATION}
                assert {w for w in words if w.startswith("--")} <= OPTIONS
                used += 1
    assert used == 4
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.S)
    named = re.findall(r"`([^`]+)`", prose)
    known = OPTIONS | {"--out"}
    assert {w for code in named for w in code.split() if w.startswith("--")} <= known


def test_every_study_and_scale_is_explained():
    for name, build in STUDIES.items():
        (row,) = re.findall(rf"^\| `{name}` \|(.*)$", PAGE, re.M)
        study = build(SCALES["tiny"])
        printed = [str(arm.paper_score) for arm in study.arms if arm.paper_score is not None]
        assert re.findall(r"\d\d\.\d(?! ?%|,? \d)", row) or not printed
        assert all(score in row for score in printed)
    for name, scale in SCALES.items():
        (row,) = re.findall(rf"^\| `{name}` \|(.*)$", PAGE, re.M)
        assert f"`{scale.recipe}`" in row
        if scale.budget:
            assert f"{scale.budget:.0e}".replace("+", "") in row


def test_the_errors_are_those_of_the_code():
    source = "\n".join(
        p.read_text(encoding="utf-8")
        for p in sorted((Path(__file__).parents[2] / "src").rglob("*.py"))
    )
    source = re.sub(r'"\s*\n\s*f?"', "", source).lower()
    (table,) = re.findall(r"\| the sentence begins \|.*", PAGE, re.S)
    for line in table.strip().splitlines()[2:]:
        for part in re.split(r"…|: |=", line.split("|")[1].strip()):
            part = re.sub(r"^\W+|\W+$", "", part).lower()
            assert part in source, line


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", PAGE))))
def test_links_lead_somewhere(link):
    file, _, anchor = link.partition("#")
    target = Path(__file__).parents[2] / "docs" / (file or "studies.md")
    assert target.exists()
    if anchor:
        heads = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.M)
        assert anchor in {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}
