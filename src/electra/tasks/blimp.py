"""BLiMP: pairs of sentences that differ in one point of grammar."""

from dataclasses import dataclass
from pathlib import Path

from electra.errors import UserError
from electra.tasks.table import read_table

FOLDERS = (".", "blimp", "data", "blimp/data", "*/blimp")
KEYS = ("sentence_good", "sentence_bad", "linguistics_term", "UID")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A good sentence and a bad one."""

    phenomenon: str
    """As `subject_verb_agreement`."""
    paradigm: str
    """As `regular_plural_subject_verb_agreement_1`, a file of 1000 pairs."""
    good: str
    bad: str


def load_blimp(folder: Path) -> list[Pair]:
    """All pairs of the folder with BLiMP's .jsonl files, or of the folder above it."""
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}': name the one with BLiMP's .jsonl files.")
    found: list[Path] = []
    for name in FOLDERS:
        within = [folder] if name == "." else sorted(folder.glob(name))
        found = sorted(path for place in within for path in place.glob("*.jsonl"))
        if found:
            break
    if not found:
        raise UserError(f"'{folder}' holds no .jsonl files: name the folder with those of BLiMP.")
    return [pair for path in found for pair in read_pairs(path)]


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of one file."""
    table = read_table(path)
    pairs = []
    for row in table.rows:
        good, bad, phenomenon, paradigm = (table.text(row, key) for key in KEYS)
        pairs.append(Pair(phenomenon=phenomenon, paradigm=paradigm, good=good, bad=bad))
    return pairs
