"""Write a trained model as a pip package: networks in fp16, manifest, model card."""

import importlib.util
import re
from pathlib import Path

import torch

from electra.errors import UserError
from electra.files import new_folder
from electra.hub.import_model import ImportedNetwork, load_folders, write_networks
from electra.model_packages import GROUP, installed_models, write_manifest
from electra.model_paths import find_model
from electra.release.card import Access, CardFacts, model_card
from electra.release.details import read_card
from electra.release.run_facts import read_run
from electra.run_dir import check_new_dir

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?")


def release(source: str, out: Path, *, name: str, version: str, card: Path | None) -> int:
    """Write the package of a pre-trained model to a new folder; returns its size in bytes.

    The folder appears complete or not at all.
    """
    module = check_name(name)
    if not VERSION.fullmatch(version):
        raise UserError(f"--version {version}: give a version such as 1.0.0 or 1.1.0rc1.")
    check_new_dir(out)
    details, evaluations = read_card(card)
    networks = dict(load_folders(source))
    check_fits_fp16(networks)
    run = read_run(find_model(source))

    with new_folder(out) as staging:
        write_networks(networks, staging / module, torch.float16)
        digests = write_manifest(staging / module, name, version)
        facts = CardFacts(
            name=name,
            access=Access(
                model=name,
                install=f"pip install ./{name}    # the folder of this card",
                imports=f"from {module} import PATH",
                folders={key: f'PATH / "{key}"' for key in networks},
                note=(
                    f"This is version {version}. The weights are stored in fp16; `electra` and "
                    "`transformers` load them in fp32."
                ),
            ),
            networks={key: found.network for key, found in networks.items()},
            electric=any(found.electric for found in networks.values()),
            sha256={f"{module}/{path}": digest for path, digest in digests.items()},
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
