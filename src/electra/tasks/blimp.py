"""Load BLiMP: pairs of sentences that differ in one point of grammar."""

from dataclasses import dataclass
from pathlib import Path

from electra.errors import UserError
from electra.tasks.table import read_table

FOLDERS = (".", "blimp", "data", "blimp/data", "*/blimp")
COLUMNS = ("sentence_good", "sentence_bad", "linguistics_term", "UID")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A grammatical sentence and an ungrammatical one."""

    phenomenon: str
    """Such as `subject_verb_agreement`."""
    paradigm: str
    """Such as `regular_plural_subject_verb_agreement_1`, a file of 1000 pairs."""
    good: str
    bad: str


def load_blimp(folder: Path) -> list[Pair]:
    """Load all pairs of a folder with BLiMP's .jsonl files, or of the folder that contains it."""
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}': name the one with BLiMP's .jsonl files.")
    files: list[Path] = []
    for name in FOLDERS:
        candidates = [folder] if name == "." else sorted(folder.glob(name))
        files = sorted(path for candidate in candidates for path in candidate.glob("*.jsonl"))
        if files:
            break
    if not files:
        raise UserError(f"'{folder}' holds no .jsonl files: name the folder with those of BLiMP.")
    return [pair for path in files for pair in read_pairs(path)]


def read_pairs(path: Path) -> list[Pair]:
    """Read the pairs of one file."""
    table = read_table(path)
    pairs = []
    for row in table.rows:
        good, bad, phenomenon, paradigm = (table.text(row, column) for column in COLUMNS)
        pairs.append(Pair(phenomenon=phenomenon, paradigm=paradigm, good=good, bad=bad))
    return pairs
