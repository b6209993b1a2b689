"""Held-out metrics of a run or a checkpoint."""

import shlex
from pathlib import Path

from electra.device import choose_device, choose_precision
from electra.errors import UserError
from electra.model_paths import resolve_model
from electra.objectives.objective import Objective
from electra.text.tokenizer import fingerprint, load_tokenizer, load_vocabulary
from electra.train import checkpoint
from electra.train.data import check_positions, held_out_rows, open_shards, shard_lengths
from electra.train.pretrain import build_objective
from electra.train.run_config import read_run_config
from electra.train.settings import PretrainConfig
from electra.train.validation import validate


def restore_run(run: Path) -> tuple[PretrainConfig, Objective]:
    """Load the configuration and the networks of a checkpoint, or of a run's last one."""
    last = last_checkpoint(run)
    config = read_run_config(last)
    objective = build_objective(config, load_vocabulary(resolve_model(str(last), "encoder")))
    checkpoint.restore_for_inference(last, objective)
    return config, objective.eval()


def last_checkpoint(run: Path) -> Path:
    """Return the newest checkpoint of a run; a checkpoint is returned as it is."""
    if (run / "state.json").is_file():
        return run
    saved = checkpoint.checkpoints(run)
    if not saved:
        what = (
            "is neither a run with a checkpoint nor a checkpoint" if run.exists() else "is missing"
        )
        raise UserError(f"The run '{run}' {what}: name the --out of `electra pretrain`.")
    return saved[-1]


def evaluate(run: Path, data: str | Path, rows: int) -> tuple[Path, dict[str, float]]:
    """Measure a checkpoint, or a run's last one; return its path and its held-out metrics."""
    last = last_checkpoint(run)
    tokenizer = resolve_model(str(last), "encoder")
    config, objective = restore_run(last)
    # Rows may have any length that the position table allows.
    phase = config.data.phases[-1]
    found = shard_lengths(str(data), phase.seq_length)
    shards = open_shards(found.get(phase.seq_length, next(iter(found.values()))), config.data)
    check_positions(shards.length, config.model.max_positions)
    if shards.fingerprint != fingerprint(load_tokenizer(tokenizer)):
        raise UserError(
            f"{data} was prepared with another tokenizer than {run}: prepare the text again with "
            f"--tokenizer {shlex.quote(str(tokenizer))}"
        )
    device = choose_device("auto")  # maybe another machine than the one that trained
    dtype = choose_precision(config.train.precision, device)
    micro_batch = phase.batch_size // config.train.grad_accumulation
    return last, validate(objective.to(device), held_out_rows(shards, rows), micro_batch, dtype)
