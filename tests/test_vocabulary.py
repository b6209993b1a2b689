"""Words that source and docs avoid, and the glossary.

Each word misleads readers or is known only in this project; the message names the one to use.
"""

import re
from pathlib import Path

import pytest

from electra.config import flatten
from electra.train.settings import PretrainConfig

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".cu", ".cuh", ".md"}
FILES = sorted(
    path.relative_to(ROOT)
    for path in (
        *(p for p in (ROOT / "src").rglob("*") if p.suffix in SUFFIXES),
        *(ROOT / "docs").rglob("*.md"),
        *(p for p in (ROOT / "tests").rglob("*.py") if p != Path(__file__)),
        *(ROOT / "benchmarks").glob("*.md"),
        *(ROOT / "benchmarks").glob("*.py"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
    )
)
AVOIDED = {
    r"(?<!\band )(?<!so )\bforth\b": "forward",
    r"\bway back\b": "backward pass",
    r"\btwins?\b|(?<!test_)twins\.py|\.twin\b": (
        "reference implementation, shadow weight, or duplicate"
    ),
    r"\bsecond cache\b": "L2",
    r"\bcopy engine\b": "TMA",
    r"\blooks? at held": "validation",
    r"\blook_at_": "validation",
    r"\brooms?\b": "package, space, or capacity",
    r"\bhouses?\b": "project",
    r"\bladders?\b": "cdf",
    r"\bodds\b": "probabilities, or exp scores",
    r"\bslopes?\b": "derivative",
    r"\bbend_\w*": "derivative",
    r"\bof_(?:x|q|k|v|qkv|h|ids|hidden|logits|weights?|bias)\b": "grad_...",
    r"\bmask_shown\b": "mask_token_prob",
    r"\bneighbours\b(?=['\"` ]*(?:with heads|init))": "model.init=local",
    r"\bsittings?\b": "session",
    r"\bexercises?\b": "mask_batch, or masked batch",
    r"\btake turns\b": "ping-pong",
    r"\bwords without logits\b": "fused linear cross-entropy",
    r"\bthe originals?\b(?! (?:token|text|id|word|weight|one|label|scheme|order))": (
        "google-research/electra, or the original token"
    ),
    r"\bthe ecosystem\b": "transformers, or the Hugging Face Hub",
    r"\blaboratory\b": "research",
}
IN_THE_LOG = {
    r"\bfigures?\b(?!:)": "metrics",
    r"\bdrawn?\b": "sampled, or masked",
    r"\blooks?\b": "validation, or pass",
    r"\bturns\b": "ping-pong, or alternating",
    r"\boriginal (?:code|implementation)\b": "google-research/electra",
}
"""More words that the benchmark log avoids; elsewhere they have their usual meaning."""
RENAMED = re.compile(r"(['\"])(?:model|generator|objective|data|train)\.\w+\1: ")
"""A line of a table of renamed settings, which has the old names."""


def violations(path: Path) -> list[str]:
    """Return `file:line: word` for each avoided word of a file."""
    found = []
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.name == "CHANGELOG.md":
        text = unreleased(text)
    words = AVOIDED | IN_THE_LOG if path.name == "log.md" else AVOIDED
    for number, line in enumerate(text.splitlines(), 1):
        if RENAMED.search(line):
            continue
        for pattern, better in words.items():
            found += [
                f"{path}:{number}: '{match[0]}' -> {better}"
                for match in re.finditer(pattern, line, re.IGNORECASE)
            ]
    return found


def unreleased(changelog: str) -> str:
    """The part of the changelog that may still change, without the table of renamed settings."""
    lines = changelog.partition("\n## [0.")[0].splitlines()
    return "\n".join("" if line.startswith("|") else line for line in lines)


def test_the_changelog_names_settings_as_they_are_now():
    """What is unreleased never had its old name for those who read it; the table has both."""
    text = unreleased((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert len(text) > 5_000
    old = [key for key in PretrainConfig.RENAMED_KEYS if re.search(rf"\b{re.escape(key)}\b", text)]
    assert not old
    assert "bench whole" not in text


@pytest.mark.parametrize("path", FILES, ids=str)
def test_avoided_words(path):
    found = violations(path)
    assert not found, "\n" + "\n".join(found)


def test_the_patterns_find_what_they_should():
    """A pattern that matches nothing would pass everywhere."""
    bad = {
        "the kernel forth and back": "forth",
        "and so forth": None,
        "on the way back": "way back",
        "its twin in plain torch": "twin",
        "from the second cache": "second cache",
        "by the copy engine": "copy engine",
        "a look at held-out text": "look at held",
        "one room of the house": "room",
        "grad = of_qkv": "of_qkv",
        "objective.mask_shown=0.85": "mask_shown",
        "as the original does": "the original",
        "the original tokens": None,
        "the original code": "the original",
        "a ladder of sums": "ladder",
        "forward and backward": None,
    }
    for line, word in bad.items():
        hits = [m[0] for p in AVOIDED for m in re.finditer(p, line, re.IGNORECASE)]
        assert (word in hits) if word else not hits, (line, hits)


def test_the_glossary_names_settings_that_exist():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    terms = [row.split("|")[1].strip() for row in rows if not row.startswith("| here ")]
    assert len(terms) >= 40
    assert len(set(terms)) == len(terms)
    known = {key for key, _ in flatten(PretrainConfig())}
    named = {match[1] for term in terms for match in re.finditer(r"`(\w+\.\w+)`", term)}
    assert len(named) > 25
    assert named <= known
