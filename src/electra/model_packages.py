"""Installed models: pip packages that register under the entry point group `electra.models`.

The entry point's name is that of the model, its value a Python package with the model's folders
and `electra-model.json`, the SHA-256 of each file. The package is found, not imported.
"""

import importlib.util
import json
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from electra.errors import UserError
from electra.files import file_sha256
from electra.json_types import parse_json

GROUP = "electra.models"
MANIFEST = "electra-model.json"
RELEASED = {"electra-small-en": "pip install weights/electra-small-en"}
"""The models in `weights/`: name -> the command that installs it, in a clone."""
# Without the option, pip keeps an installed wheel of the same version, however damaged.
AGAIN = "install the model again, with pip's --force-reinstall."


def installed_models() -> dict[str, EntryPoint]:
    """The installed models by name; they are not opened."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def find_installed(name: str) -> Path | None:
    """Return the folder of an installed model, or None if no model has this name."""
    entry = None if "/" in name else installed_models().get(name)
    if entry is None:
        return None
    try:
        spec = importlib.util.find_spec(entry.module)
    except ModuleNotFoundError:  # the parent of a module with a dot is missing
        spec = None
    for location in (spec and spec.submodule_search_locations) or ():
        if (Path(location) / MANIFEST).is_file():
            return Path(location)
    raise UserError(f"The files of the installed model '{name}' are missing: {AGAIN}")


def find_package(folder: Path) -> Path | None:
    """Return the folder with the networks inside the source folder of a model package."""
    manifest = next(iter(sorted(folder.glob(f"*/{MANIFEST}"))), None)
    return manifest.parent if manifest else None


def write_manifest(folder: Path, name: str, version: str) -> dict[str, str]:
    """Write the SHA-256 of all files of a model; returns them by path."""
    files = {
        path.relative_to(folder).as_posix(): file_sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent != folder
    }
    text = json.dumps({"name": name, "version": version, "sha256": files}, indent=2)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return files


def check_files(folder: Path) -> None:
    """Compare the files of one network of a model package with their SHA-256.

    Folders without a manifest above them are those of runs and of others: nothing is checked.
    """
    network = folder.absolute()  # "." has no name
    manifest = network.parent / MANIFEST
    if not manifest.is_file():
        return
    try:
        content = parse_json(manifest.read_text(encoding="utf-8"))
        model, files = f"{content['name']} {content['version']}", dict(content["sha256"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{manifest} is damaged: {AGAIN}") from None
    for name, expected in files.items():
        path = network.parent / name
        if path.parent != network:
            continue
        if not path.is_file():
            raise UserError(f"{path} of {model} is missing: {AGAIN}")
        if file_sha256(path) != expected:
            raise UserError(f"{path} is damaged: its SHA-256 is not that of {model}; {AGAIN}")
