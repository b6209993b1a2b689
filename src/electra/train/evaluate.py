"""Held-out figures of a finished or unfinished run."""

from pathlib import Path

from electra.errors import UserError
from electra.text.shards import Shards
from electra.text.tokenizer import fingerprint, load_tokenizer, load_vocabulary
from electra.train import checkpoint
from electra.train.data import check_positions, held_out_rows
from electra.train.device import choose_device, choose_precision
from electra.train.pretrain import build_objective, read_run_config
from electra.train.validate import validate


def evaluate(run: Path, data: Path, rows: int) -> tuple[Path, dict[str, float]]:
    """The checkpoint that was measured (the last one of a run) and its figures."""
    saved = checkpoint.checkpoints(run)
    if (run / "state.json").is_file():
        last, tokenizer = run, run / "discriminator"
    elif saved:
        last, tokenizer = saved[-1], run / "tokenizer"
    else:
        raise UserError(f"{run} is neither a run with a checkpoint nor a checkpoint.")
    config = read_run_config(last)
    # Held-out text of any row length can be measured, as long as the positions last.
    shards = Shards.open(data)
    check_positions(shards.length, config.model.positions)
    if shards.fingerprint != fingerprint(load_tokenizer(tokenizer)):
        raise UserError(
            f"{data} was prepared with another tokenizer than {run}: prepare the text again with "
            f"--tokenizer {tokenizer}"
        )
    device = choose_device(config.train.device)
    objective = build_objective(config, load_vocabulary(tokenizer)).to(device)
    checkpoint.restore(last, objective)
    dtype = choose_precision(config.train.precision, device)
    micro_batch = config.data.batch // config.train.accumulate
    return last, validate(objective, held_out_rows(shards, rows), micro_batch, dtype)
