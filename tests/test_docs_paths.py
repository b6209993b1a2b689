"""The files and the Python names that pages and source mention exist."""

import re
from pathlib import Path

import pytest

import electra

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/electra"
PAGES = [
    *sorted(ROOT.glob("docs/*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    SOURCE / "kernels/README.md",
]
FILES = [p for folder in ("src", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.*")]
SUFFIX = r"\.(?:py|cu|cuh|md|svg)\b"
FILE = re.compile(rf"`([\w./-]+{SUFFIX})`|\b((?:src|tests|benchmarks|docs)/[\w./-]+{SUFFIX})")
"""A file between backticks, or anywhere if it begins with a folder of the repository."""
NAME = re.compile(r"`electra((?:\.\w+)+)`")
"""A module, or a name in one, as in `electra.optim.optimizer.Optimizer`."""
EXAMPLES = {
    "custom_datasets.py",  # of EuroEval
    "configure_pretraining.py",  # of google-research/electra
    "ordinal.py",  # the reader of extending.md writes it and the next two
    "objectives/weighted.py",
    "optim/sgd.py",
    "page.md",  # of the folder of a study
    "table.md",
}
"""Files that are not of this repository."""


def exists(file: str) -> bool:
    """Whether the path of a file of this repository ends so."""
    return (ROOT / file).is_file() or any(str(path).endswith("/" + file) for path in FILES)


def defined(name: str) -> bool:
    """Whether `.package.module` or `.package.module.name` exists."""
    *parents, last = name.strip(".").split(".")
    if not parents and hasattr(electra, last):
        return True
    folder = SOURCE.joinpath(*parents)
    if (folder / last).is_dir() or (folder / f"{last}.py").is_file():
        return True
    module = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = module.read_text(encoding="utf-8") if module.is_file() else ""
    return re.search(rf"^(?:def |class )?{last}\b", text, re.M) is not None


def unknown(text: str) -> list[str]:
    """Return the files and names that a text mentions and that do not exist."""
    files = {a or b for a, b in FILE.findall(text)} - EXAMPLES
    names = set(NAME.findall(text))
    return sorted(f for f in files if not exists(f)) + sorted(n for n in names if not defined(n))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_mentions_exists(page):
    assert not unknown(page.read_text(encoding="utf-8"))


def test_what_the_source_mentions_exists():
    found = {
        str(path.relative_to(ROOT)): missing
        for path in SOURCE.rglob("*.*")
        if path.suffix in (".py", ".cu", ".cuh")
        and (missing := unknown(path.read_text(encoding="utf-8")))
    }
    assert not found


def test_missing_files_and_names_are_found():
    assert not unknown("`kernels/plan.py`, `plan.py`, `electra.kernels.plan.Plan`, `electra.load`")
    wrong = "`kernels/plans.py`, run benchmarks/steps.py, `electra.kernels.plan.Plans`"
    assert unknown(wrong) == ["benchmarks/steps.py", "kernels/plans.py", ".kernels.plan.Plans"]
