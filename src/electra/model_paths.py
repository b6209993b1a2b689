"""Find a model: in a run, a checkpoint or a folder, by the name of a package, or on the Hub."""

import difflib
import warnings
from pathlib import Path
from typing import Literal

from electra.errors import UserError, require
from electra.model_packages import (
    MANIFEST,
    RELEASED,
    find_installed,
    find_package,
    installed_models,
)

Network = Literal["discriminator", "generator", "encoder"]
FOLDERS: dict[Network, tuple[str, ...]] = {
    "discriminator": ("discriminator",),
    "generator": ("generator", "mlm"),  # a run of masked language modelling has only `mlm`
    "encoder": ("discriminator", "mlm"),  # the network to fine-tune, whatever its head
}
SUBFOLDERS = ("discriminator", "generator", "mlm", "model")
"""Where a checkpoint, or the output of fine-tuning, keeps its networks."""


def resolve_model(model: str, network: Network) -> Path:
    """Return the folder of one network of a run, a folder, an installed model or a Hub model."""
    return find_network(find_model(model), network)


def find_model(model: str) -> Path:
    """Return the folder of a model: a run's last checkpoint, a folder, a package or a download.

    A folder here comes before an installed model of the same name, with a warning.
    """
    path = Path(model).expanduser()
    if not model:  # Path("") is the current folder
        raise UserError("The name of the model is empty: give a run, a folder or a name.")
    if not path.is_dir():
        return find_installed(model) or _download(model)
    if "/" not in model and model in installed_models():
        warnings.warn(
            f"'{model}' is a folder here and an installed model: the folder is used.", stacklevel=2
        )
    checkpoints = sorted((path / "checkpoints").glob("step-*"))
    if checkpoints:
        return checkpoints[-1]
    if _holds_model(path):
        return path
    if package := find_package(path):
        return package
    if (path / "config.yaml").is_file():
        raise UserError(f"The run {path} has no checkpoint yet: continue it with --resume.")
    raise UserError(
        f"{path} is neither a run nor a checkpoint nor a folder with a model: check it."
    )


def find_network(folder: Path, network: Network) -> Path:
    """Return the folder of one network inside the folder of a model."""
    for name in (*FOLDERS[network], "model"):
        if (folder / name / "config.json").is_file():
            return folder / name
    others = [name for name in SUBFOLDERS if (folder / name).is_dir()]
    if others:
        settings = folder / "config.yaml"
        why = (
            "the run's objective decides what it trains (objective.kind, generator.kind in "
            f"{settings})."
            if settings.is_file()
            else "give a folder that has one."
        )
        raise UserError(f"{folder} has no {network}, only {' and '.join(others)}: {why}")
    return folder


def find_tokenizer(tokenizer: Path) -> Path:
    """Return a tokenizer's folder or file; a model package or its name means its tokenizer."""
    if tokenizer.exists():
        package = find_package(tokenizer) if tokenizer.is_dir() else None
    else:
        package = find_installed(str(tokenizer))
        if not package:
            _refuse_released(str(tokenizer))
    return find_network(package, "encoder") if package else tokenizer


def _holds_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or any(
        (folder / name / "config.json").is_file() for name in SUBFOLDERS
    )


def _refuse_released(model: str) -> None:
    """For a released model that is not installed, name the command that installs it."""
    if model in RELEASED:
        raise UserError(
            f"The model '{model}' is not installed: in a clone of the repository, run  "
            f"{RELEASED[model]}"
        )


def _download(model: str) -> Path:
    """Download a model from the Hub; names that cannot be one are refused at once."""
    path = Path(model)
    _refuse_released(model)
    # A Hub name looks like a path of two parts, but its first part is no folder here.
    if path.exists() or model.count("/") != 1 or path.parent.exists() or model[0] in "./~":
        raise UserError(
            f"There is no model at '{model}': give a run, a folder, an installed model or a Hub "
            f"name."
            f"{suggest_model(model)}"
        )
    hub = require("huggingface_hub", "hub")
    files = ["config.json", "model.safetensors", "tokenizer*.json", "vocab.txt", "task.json"]
    wanted = [MANIFEST, *files, *(f"{sub}/{file}" for sub in SUBFOLDERS for file in files)]
    try:
        return Path(hub.snapshot_download(model, allow_patterns=wanted))
    except Exception as error:  # the library raises a dozen types; the first line says why
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"'{model}' is not a folder here, and the Hub did not provide it: {reason}"
            f"{suggest_model(model)}"
        ) from None


def suggest_model(name: str) -> str:
    """Return ` Did you mean '…'?` for a model with a similar name, or nothing.

    Candidates are models in folders nearby, installed models and released ones.
    """
    near = {Path(name).parent, Path("runs"), Path()}
    folders = [
        folder
        for parent in sorted(near)
        if parent.is_dir()
        for folder in sorted(parent.iterdir())
        if folder.is_dir() and ((folder / "checkpoints").is_dir() or _holds_model(folder))
    ]
    installed = installed_models()
    by_name = {str(folder): str(folder) for folder in folders}
    by_name = {folder.name: str(folder) for folder in folders} | by_name
    by_name |= {model: model for model in (*RELEASED, *installed)}
    close = difflib.get_close_matches(name, by_name, n=1) or difflib.get_close_matches(
        Path(name).name, by_name, n=1
    )
    if not close:
        return ""
    found = by_name[close[0]]
    install = "" if found in installed else RELEASED.get(found, "")
    return f" Did you mean '{found}'?" + (f" It is installed by  {install}" if install else "")
