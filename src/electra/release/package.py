"""Write a trained model as a pip package: networks in fp16, manifest, model card."""

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import torch

from electra.config import flatten, from_yaml
from electra.errors import UserError
from electra.files import new_folder
from electra.hub.import_model import ImportedNetwork, load_folders, write_networks
from electra.model_packages import GROUP, installed_models, write_manifest
from electra.model_paths import find_model
from electra.recipes import RECIPES, recipe
from electra.release.card import CardFacts, RunFacts, model_card
from electra.release.details import read_details, read_evaluations
from electra.train.checkpoint import read_state
from electra.train.settings import PretrainConfig

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?")
LICENSE = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*")
NOT_OF_THE_RECIPE = ("name", "data.folder", "model.vocab_size", "train.budget")
"""Settings that the derived command leaves out, or names as an option."""


def release(source: str, out: Path, *, name: str, version: str, card: Path | None) -> int:
    """Write the package of a pre-trained model to a new folder; returns its size in bytes.

    The folder appears complete or not at all.
    """
    module = check_name(name)
    if not VERSION.fullmatch(version):
        raise UserError(f"--version {version}: give a version such as 1.0.0 or 1.1.0rc1.")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} already exists: choose another --out, or delete it.")
    details = read_details(card)
    if details.license and not LICENSE.fullmatch(details.license):
        raise UserError(
            f"{card}: license '{details.license}' is no SPDX identifier: write one such as "
            "Apache-2.0 or CC-BY-SA-4.0."
        )
    evaluations = read_evaluations(details, card.parent if card else Path())
    networks = dict(load_folders(source))
    check_fits_fp16(networks)
    run = read_run(find_model(source))

    with new_folder(out) as staging:
        write_networks(networks, staging / module, torch.float16)
        facts = CardFacts(
            name=name,
            module=module,
            version=version,
            networks={key: found.network for key, found in networks.items()},
            electric=any(found.electric for found in networks.values()),
            sha256=write_manifest(staging / module, name, version),
            run=run,
            evaluations=evaluations,
        )
        files = {
            "README.md": model_card(facts, details),
            "pyproject.toml": pyproject(name, module, version, details.license),
            f"{module}/__init__.py": INIT.format(name=name, version=version),
        }
        for path, text in files.items():
            (staging / path).write_text(text, encoding="utf-8")
        return sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())


def check_name(name: str) -> str:
    """Return the Python package of a model's name; refuse names that pip or Python cannot use."""
    if not NAME.fullmatch(name):
        raise UserError(
            f"--name {name}: use lower-case letters, digits and single hyphens, such as "
            "electra-small-en."
        )
    module = name.replace("-", "_")
    spec = importlib.util.find_spec(module)
    # Any folder on the path, such as the working directory, has a spec, but no origin.
    if name not in installed_models() and spec and spec.origin:
        raise UserError(f"--name {name}: there is a Python package '{module}'; use another name.")
    return module


def check_fits_fp16(networks: dict[str, ImportedNetwork]) -> None:
    """Refuse weights that fp16 cannot hold, and those of a run that diverged."""
    limit = torch.finfo(torch.float16).max
    for name, found in networks.items():
        for tensor, parameter in found.network.named_parameters():
            if not (parameter.abs() <= limit).all():  # also false for NaN
                raise UserError(
                    f"{tensor} of the {name} holds NaN or values above {limit:.0f}, which fp16 "
                    "cannot store: release a run that did not diverge."
                )


def read_run(folder: Path) -> RunFacts | None:
    """What a checkpoint knows about its run; None for other folders."""
    if not ((folder / "config.yaml").is_file() and (folder / "state.json").is_file()):
        return None
    path = folder / "config.yaml"
    config = from_yaml(PretrainConfig, path.read_bytes(), str(path))
    state = read_state(folder)
    return RunFacts(
        settings=dict(flatten(config)),
        command=derive_command(config),
        steps=state.step,
        tokens=state.tokens,
        minutes=state.seconds / 60,
        validation=state.held_out,
    )


def derive_command(config: PretrainConfig) -> str:
    """A command with the settings of a run; empty if its recipe is not one of ours."""
    if config.name not in RECIPES:
        return ""
    usual = dict(flatten(recipe(config.name)))
    changed = [
        f"{key}={setting_text(value)}"
        for key, value in flatten(config)
        if key not in NOT_OF_THE_RECIPE and value != usual[key]
    ]
    options = ["--data", "shards", "--out", "run", "--budget", config.train.budget]
    return shlex.join(["electra", "pretrain", config.name, *options, *changed])


def setting_text(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, tuple):
        return ",".join(map(setting_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def pyproject(name: str, module: str, version: str, license_id: str) -> str:
    """The package's `pyproject.toml`; it depends on nothing, because the folders are only data."""
    license_line = f'license = "{license_id}"\n' if license_id else ""
    return (
        '[build-system]\nrequires = ["hatchling>=1.26"]\nbuild-backend = "hatchling.build"\n\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\n'
        'description = "A pre-trained ELECTRA text encoder."\n'
        f'readme = "README.md"\n{license_line}requires-python = ">=3.11"\n\n'
        f'[project.entry-points."{GROUP}"]\n{name} = "{module}"\n\n'
        f'[tool.hatch.build.targets.wheel]\npackages = ["{module}"]\n'
    )


INIT = '''"""The model {name}; `PATH` is the folder with its networks."""

from pathlib import Path

__version__ = "{version}"
PATH = Path(__file__).parent
'''
