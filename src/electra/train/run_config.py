"""The `config.yaml` of a run: write it, read it, and check it when the run is resumed."""

import shlex
import warnings
from pathlib import Path

from electra.config import flatten, from_yaml, to_dict, to_yaml
from electra.errors import UserError
from electra.files import write_atomic
from electra.train import checkpoint
from electra.train.settings import MAY_CHANGE_ON_RESUME, PretrainConfig


def save_config(config: PretrainConfig, out: Path) -> None:
    """Write `config.yaml`, unless it says the same already."""
    path, text = out / "config.yaml", to_yaml(config).encode()
    if not path.is_file() or path.read_bytes() != text:
        write_atomic(path, text)


def read_run_config(out: Path) -> PretrainConfig:
    """The configuration of a run or a checkpoint."""
    path, hint = out / "config.yaml", restore_hint(out)
    if not path.is_file() and not hint:
        raise UserError(f"{out} holds no run: there is no config.yaml in it.")
    if not path.is_file():
        raise UserError(f"{path} is missing beside the checkpoints of the run.{hint}")
    try:
        return from_yaml(PretrainConfig, path.read_bytes(), str(path))
    except UserError as error:
        raise UserError(f"{error}{hint}") from None


def check_no_run(out: Path) -> None:
    """Refuse a folder that holds a run."""
    if (out / "config.yaml").exists() or checkpoint.checkpoints(out):
        raise UserError(
            f"{out} already holds a run: add --resume to continue it, or choose another --out."
        )


def restore_hint(out: Path) -> str:
    """How to restore the `config.yaml` of a run; empty if it has no checkpoint."""
    saved = checkpoint.checkpoints(out)
    if not saved:
        return ""
    copy = shlex.join(["cp", str(saved[-1] / "config.yaml"), str(out / "config.yaml")])
    return f" Restore it with '{copy}'."


def check_unedited(config: PretrainConfig, out: Path) -> None:
    """Refuse a `config.yaml` that was damaged or edited since the last checkpoint."""
    saved = checkpoint.checkpoints(out)
    if not saved:
        text = "\n" + (out / "config.yaml").read_text(encoding="utf-8")
        # Earlier versions ended with the last setting of `train`, which was called `track`.
        whole = any(f"\n  {name}: " in text for name in ("logger", "track"))
        for section in to_dict(config):
            old = section in ("init_from", "score_on") and whole
            if f"\n{section}:" not in text and not old:
                raise UserError(
                    f"{out / 'config.yaml'} is damaged: it has no '{section}'. There is no "
                    "checkpoint to restore it from: start a new run in another --out."
                )
        return
    with warnings.catch_warnings():  # of old names, which reading the run's own file has given
        warnings.simplefilter("ignore", FutureWarning)
        trained = dict(flatten(read_run_config(saved[-1])))
    for key, value in flatten(config):
        if key not in MAY_CHANGE_ON_RESUME and value != trained[key]:
            raise UserError(
                f"{out / 'config.yaml'} has {key}={value}, but the last checkpoint was trained "
                f"with {key}={trained[key]}: the file was edited or damaged.{restore_hint(out)} "
                "For other settings start a new run in another --out."
            )


def check_same(stored: PretrainConfig, wanted: PretrainConfig) -> None:
    """Refuse to resume with settings that would change what the run learns."""
    others = dict(flatten(wanted))
    for key, value in flatten(stored):
        fixed = key not in MAY_CHANGE_ON_RESUME
        if fixed and value != others[key] and key != "model.vocab_size":  # set by the data
            raise UserError(
                f"The run was started with {key}={value}, not {others[key]}: a resumed run "
                "keeps its settings; leave that out, or start a new run in another --out."
            )
