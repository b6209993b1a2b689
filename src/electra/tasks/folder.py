"""Which file of a folder is which split, and its text."""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from electra.errors import UserError
from electra.text.sources import COMPRESSED, hidden

NAMES = {
    "train": ("train", "training"),
    "dev": ("dev", "valid", "validation", "val", "development", "testa"),
    "test": ("test", "testb", "testing"),
}
VERSION = re.compile(r"v\d+\.\d")


def find_folder(data: Path, names: Sequence[str]) -> Path:
    """The file or folder that is given, or in it a folder of one of the names."""
    if not data.exists():
        raise UserError(f"There is no file or folder '{data}': check the path.")
    if not data.is_dir() or named_splits(data.iterdir()):
        return data
    for name in names:
        for found in (data / name, *sorted(data.glob(f"*/{name}"))):
            if found.is_dir():
                return found
    return data


def named_splits(paths: Iterable[Path]) -> list[Path]:
    """The files that are named after a split, in the order of their names."""
    every = {name for names in NAMES.values() for name in names}
    return sorted(p for p in paths if p.is_file() and not every.isdisjoint(name_parts(p)))


def name_parts(path: Path) -> list[str]:
    """The words of a file's name: train-v1.1.json -> train, v, json."""
    return re.findall(r"[a-z]+", path.name.lower())


def ending(path: Path) -> str:
    """The ending of a file's name, without that of a compression."""
    endings = [suffix.lower() for suffix in path.suffixes]
    return next((each for each in reversed(endings) if each not in COMPRESSED), "")


def bare_name(path: Path) -> str:
    """A file's name without its endings."""
    return path.with_suffix("").stem if path.suffix.lower() in COMPRESSED else path.stem


def split_files(
    folder: Path, *, endings: Collection[str] | None = None, version: str = ""
) -> dict[str, Path]:
    """The file of each split that is there; a single file is `train`."""
    if not folder.is_dir():  # a file, or a pipe
        return {"train": folder}
    files = [p for p in named_splits(folder.iterdir()) if not hidden(Path(p.name))]
    files = [p for p in files if endings is None or ending(p) in endings]
    files = [p for p in files if version in p.name] or [
        p
        for p in files
        if not (version and VERSION.search(p.name))  # another one's
    ]
    found: dict[str, Path] = {}
    for split, names in NAMES.items():
        candidates = [p for p in files if not set(names).isdisjoint(name_parts(p))]
        if candidates:
            found[split] = pick(split, candidates, found.get("train"))
    if "train" not in found:
        which = f" of {version}" if version else ""
        raise UserError(
            f"'{folder}' holds no train file{which}: name a folder with files train.… and dev.…, "
            "or one file."
        )
    return found


def pick(split: str, candidates: list[Path], train: Path | None) -> Path:
    """The one file of a split: the plain name, else the one that is named as the train file is."""
    if len(candidates) == 1:
        return candidates[0]
    plain = [p for p in candidates if p.name.split(".")[0].lower() in NAMES[split]]
    like = [
        p
        for p in candidates
        if train and p.name in {train.name.replace("train", name) for name in NAMES[split]}
    ]
    for some in (like, plain):
        if len(some) == 1:
            return some[0]
    listed = ", ".join(f"'{p.name}'" for p in candidates[:4])
    raise UserError(
        f"'{candidates[0].parent}' holds several files for {split} ({listed}): "
        "keep one of them in the folder."
    )
