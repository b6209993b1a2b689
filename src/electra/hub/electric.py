"""Folders of Electric: their discriminator gives energies, which `config.json` says."""

import json
from pathlib import Path

KEY = "electra_objective"


def mark_electric(folder: Path) -> None:
    """Say in a model's `config.json` that its scores are energies."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {KEY: "electric"}
    text = json.dumps(config, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def is_electric(folder: Path) -> bool:
    """Whether a model's scores are energies."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config.get(KEY) == "electric"
