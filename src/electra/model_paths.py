"""Find a model: in a run, in a checkpoint, in a folder of its own, or on the Hugging Face Hub."""

from pathlib import Path
from typing import Literal

from electra.errors import UserError, require

Network = Literal["discriminator", "generator", "encoder"]
FOLDERS: dict[Network, tuple[str, ...]] = {
    "discriminator": ("discriminator",),
    "generator": ("generator", "mlm"),  # a run of masked language modelling has no other
    "encoder": ("discriminator", "mlm"),  # the network that is kept, whatever its head
}


def resolve_model(model: str, network: Network) -> Path:
    """The folder of a network: in a run, in a checkpoint, itself, or fetched from the Hub."""
    path = Path(model)
    if path.is_dir():
        checkpoints = sorted((path / "checkpoints").glob("step-*"))
        place = checkpoints[-1] if checkpoints else path
        for inner in (*FOLDERS[network], "model"):  # a checkpoint, or what fine-tuning wrote
            if (place / inner / "config.json").is_file():
                return place / inner
        others = [name for name in ("discriminator", "generator", "mlm") if (place / name).is_dir()]
        if others:
            raise UserError(
                f"{place} has no {network}, only {' and '.join(others)}: that is what the run's "
                f"objective leaves (objective.kind, generator.kind in {place / 'config.yaml'})."
            )
        if (path / "config.json").is_file():
            return path
        if (path / "config.yaml").is_file():
            raise UserError(f"The run {path} has no checkpoint yet: go on with it by --resume.")
        raise UserError(f"{path} is neither a run nor a checkpoint nor a folder with a model.")
    # A Hub name looks like a path of two parts, but its first part is no folder here.
    if path.exists() or model.count("/") != 1 or path.parent.exists() or model[0] in "./~":
        raise UserError(f"There is no model at '{model}': give a run, a folder or a Hub name.")
    hub = require("huggingface_hub", "hub")
    wanted = ["config.json", "model.safetensors", "tokenizer*.json", "vocab.txt", "task.json"]
    try:
        return Path(hub.snapshot_download(model, allow_patterns=wanted))
    except Exception as error:  # the library has a dozen kinds, each a reason of one line
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"'{model}' is no folder here, and the Hub did not give it: {reason}"
        ) from None
