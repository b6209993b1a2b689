"""Find the files of a task: which file of a folder is which split."""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from electra.errors import UserError
from electra.text.sources import COMPRESSED, hidden

SPLIT_NAMES = {
    "train": ("train", "training"),
    "dev": ("dev", "valid", "validation", "val", "development", "testa"),
    "test": ("test", "testb", "testing"),
}
VERSION = re.compile(r"v\d+\.\d")


def find_data(data: Path, subfolders: Sequence[str]) -> Path:
    """Return `data`, or one of its `subfolders` if `data` is a folder without split files."""
    if not data.exists():
        raise UserError(f"There is no file or folder '{data}': check the path.")
    if not data.is_dir() or named_splits(data.iterdir()):
        return data
    for name in subfolders:
        for found in (data / name, *sorted(data.glob(f"*/{name}"))):
            if found.is_dir():
                return found
    return data


def named_splits(paths: Iterable[Path]) -> list[Path]:
    """Return the files named after a split, sorted."""
    known = {name for names in SPLIT_NAMES.values() for name in names}
    return sorted(p for p in paths if p.is_file() and not known.isdisjoint(name_parts(p)))


def name_parts(path: Path) -> list[str]:
    """Split a file name into its words: `train-v1.1.json` -> train, v, json."""
    return re.findall(r"[a-z]+", path.name.lower())


def file_extension(path: Path) -> str:
    """Return the extension of a file, ignoring that of a compression."""
    extensions = [suffix.lower() for suffix in path.suffixes]
    return next((each for each in reversed(extensions) if each not in COMPRESSED), "")


def file_stem(path: Path) -> str:
    """Return the file name without its extension and that of a compression."""
    return path.with_suffix("").stem if path.suffix.lower() in COMPRESSED else path.stem


def find_split_files(
    folder: Path, *, extensions: Collection[str] | None = None, version: str = ""
) -> dict[str, Path]:
    """Map each split to its file; a single file is `train`.

    `version` prefers files with that version in their name, such as v1.1.
    """
    if not folder.is_dir():  # a file, or a pipe
        return {"train": folder}
    files = [p for p in named_splits(folder.iterdir()) if not hidden(Path(p.name))]
    files = [p for p in files if extensions is None or file_extension(p) in extensions]
    if version:
        unversioned = [p for p in files if not VERSION.search(p.name)]
        files = [p for p in files if version in p.name] or unversioned
    found: dict[str, Path] = {}
    for split, names in SPLIT_NAMES.items():
        candidates = [p for p in files if not set(names).isdisjoint(name_parts(p))]
        if candidates:
            found[split] = pick_file(split, candidates, found.get("train"))
    if "train" not in found:
        which = f" of {version}" if version else ""
        raise UserError(
            f"'{folder}' holds no train file{which}: use a folder with the files train.… and "
            "dev.…, or a single file."
        )
    return found


def pick_file(split: str, candidates: list[Path], train: Path | None) -> Path:
    """Pick the file of a split: the one named like the train file, else the plain name."""
    if len(candidates) == 1:
        return candidates[0]
    plain = [p for p in candidates if p.name.split(".")[0].lower() in SPLIT_NAMES[split]]
    names = {train.name.replace("train", name) for name in SPLIT_NAMES[split]} if train else set()
    for preferred in ([p for p in candidates if p.name in names], plain):
        if len(preferred) == 1:
            return preferred[0]
    listed = ", ".join(f"'{p.name}'" for p in candidates[:4])
    raise UserError(
        f"'{candidates[0].parent}' holds several files for {split} ({listed}): "
        "keep one of them in the folder."
    )
