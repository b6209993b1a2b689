"""Text and tags for benchmarks/tagging.py, from public data in the form that it is distributed in.

    python benchmarks/tagging_data.py vietnamese vi_wiki.txt.xz multilingual/vi OUT
    python benchmarks/tagging_data.py biomedical MTL-Bioinformatics-2016/data OUT

vietnamese: the part-of-speech files have lost the spaces inside of words (`hảiquân`, where text
has `hải quân`); they are restored by the frequencies of syllables in the text. biomedical: BC5CDR
(chemicals and diseases) becomes the task, and the sentences of all corpora of that repository the
text, without those of the task's dev and test sets.
"""

import argparse
import lzma
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from electra.jsonl import to_json

LONGEST_SYLLABLE = 7
RAREST_SYLLABLE = 20
BLOCK = 10  # sentences that make a document: the corpora do not say where one ends
Sentence = list[tuple[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    kinds = parser.add_subparsers(required=True)
    vietnamese = kinds.add_parser("vietnamese")
    vietnamese.add_argument("text", type=Path, help="Vietnamese text, .txt.xz")
    vietnamese.add_argument("tags", type=Path, help="folder of train-vi.tsv and dev-vi.tsv")
    vietnamese.set_defaults(make=make_vietnamese)
    biomedical = kinds.add_parser("biomedical")
    biomedical.add_argument("corpora", type=Path, help="folder of BC5CDR-IOB and others")
    biomedical.set_defaults(make=make_biomedical)
    for kind in (vietnamese, biomedical):
        kind.add_argument("out", type=Path)
    options = parser.parse_args()
    options.make(options)


def make_vietnamese(options: argparse.Namespace) -> None:
    """OUT/task, with spaces inside of words, and OUT/task-as-is."""
    counts: Counter[str] = Counter()
    with lzma.open(options.text, "rt", encoding="utf-8") as lines:
        for line in lines:
            counts.update(re.findall(r"[^\W\d_]+", line))
    for split in ("train", "dev"):
        sentences = read_sentences(options.tags / f"{split}-vi.tsv")
        write_task(options.out / "task-as-is", split, sentences)
        spaced = [[(restore_spaces(word, counts), tag) for word, tag in s] for s in sentences]
        write_task(options.out / "task", split, spaced)


def restore_spaces(word: str, counts: Counter[str]) -> str:
    """Split a word into the most probable syllables; one that has no such split stays."""
    if word.isupper() or not word.isalpha():
        return word
    total = counts.total()
    best: list[tuple[float, list[str]] | None] = [(0.0, [])]
    for end in range(1, len(word) + 1):
        found = None
        for begin in range(max(0, end - LONGEST_SYLLABLE), end):
            before, syllable = best[begin], word[begin:end]
            if before is None or counts[syllable] < RAREST_SYLLABLE or not has_vowel(syllable):
                continue
            cost = before[0] - math.log(counts[syllable] / total)
            if found is None or cost < found[0]:
                found = (cost, [*before[1], syllable])
        best.append(found)
    return " ".join(best[-1][1]) if best[-1] else word


def has_vowel(syllable: str) -> bool:
    """Whether a letter is a vowel, with whatever accents."""
    return not set("aeiouy").isdisjoint(unicodedata.normalize("NFD", syllable.lower()))


def make_biomedical(options: argparse.Namespace) -> None:
    """OUT/text.txt and OUT/task."""
    task = options.corpora / "BC5CDR-IOB"
    splits = {"train": "train", "dev": "devel", "test": "test"}
    held_out = set()
    for split, name in splits.items():
        sentences = read_sentences(task / f"{name}.tsv")
        write_task(options.out / "task", split, sentences)
        if split != "train":
            held_out |= {text_of(sentence) for sentence in sentences}
    texts: dict[str, None] = {}  # in order, each once: some corpora share articles
    for path in sorted(options.corpora.glob("*/*.tsv")):
        if path.stem == "train" or not path.parent.name.startswith("BC5CDR"):
            texts |= dict.fromkeys(text_of(sentence) for sentence in read_sentences(path))
    lines = [text for text in texts if text not in held_out]
    blocks = ["\n".join(lines[i : i + BLOCK]) for i in range(0, len(lines), BLOCK)]
    out = options.out / "text.txt"
    out.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    print(f"{out}: {len(lines):,} sentences, {sum(len(x.split()) for x in lines):,} words")


def text_of(sentence: Sentence) -> str:
    return " ".join(word for word, _ in sentence)


def read_sentences(path: Path) -> list[Sentence]:
    """Sentences of a file with a word and its tag, the last column, per line."""
    blocks = path.read_text(encoding="utf-8").replace("\r", "").split("\n\n")
    rows = ([line.split("\t") for line in block.splitlines() if line] for block in blocks)
    return [[(columns[0], columns[-1]) for columns in block] for block in rows if block]


def write_task(folder: Path, split: str, sentences: Iterable[Sequence[tuple[str, str]]]) -> None:
    """Write a split as JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
        for sentence in sentences:
            words, tags = zip(*sentence, strict=True)
            file.write(to_json({"words": words, "tags": tags}) + "\n")


if __name__ == "__main__":
    main()
