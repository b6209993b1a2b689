"""Model folders of Electric: `config.json` records that the discriminator outputs energies."""

import json
from pathlib import Path

KEY = "electra_objective"


def mark_electric(folder: Path) -> None:
    """Record in a model's `config.json` that its outputs are energies."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {KEY: "electric"}
    text = json.dumps(config, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def is_electric(folder: Path) -> bool:
    """Return whether a model's outputs are energies."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config.get(KEY) == "electric"
