"""Checkpoints of a sharded run: each rank writes its part while training goes on."""

import copy
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from electra.objectives.objective import Objective
from electra.train import checkpoint
from electra.train.checkpoint import SHARDED, TrainState
from electra.train.distributed import TIMEOUT, Ranks
from electra.train.sharded_files import wait_for, write_shards
from electra.train.step import Step


class ShardedSaver:
    """Writes checkpoints in the background, one at a time; all ranks call the same methods.

    Training waits until the tensors are copied to the host, and not for the disk. When all ranks
    have written their parts, the first one exports the networks from them and gives the checkpoint
    its name: until then, there is none.
    """

    def __init__(self, ranks: Ranks, whole: Objective | None, pad_id: int) -> None:
        """`whole` is an objective like the run's, which the first rank loads to export."""
        from torch.distributed import new_group

        self.ranks, self.whole, self.pad_id = ranks, whole, pad_id
        # Its own messages, because those of training go on meanwhile
        self.group = new_group(backend="gloo", timeout=TIMEOUT)
        self.completing = ThreadPoolExecutor(1, "checkpoint")
        self.writing: Future[Any] | None = None

    def start(self, run: Path, state: TrainState, step: Step, random: dict[str, Tensor]) -> None:
        """Start to write the checkpoint of a step, when the one before is complete."""
        self.wait()
        partial = None
        with self.ranks.together():
            if self.ranks.first and (partial := checkpoint.begin(run, state.step)) is not None:
                (partial / SHARDED).mkdir()
        if (partial := self.ranks.broadcast(partial)) is None:
            return
        groups = checkpoint.tensor_groups(step.objective, step.optimizer, step.ema)
        tensors = {f"{group}.{k}": t for group, of in groups.items() for k, t in of.items()}
        self.writing = write_shards(partial / SHARDED, tensors, self.group)
        if self.ranks.first:
            then = (self.writing, partial, run, copy.deepcopy(state), random)
            self.writing = self.completing.submit(self._complete, *then)

    def _complete(
        self,
        written: Future[Any],
        partial: Path,
        run: Path,
        state: TrainState,
        random: dict[str, Tensor],
    ) -> None:
        assert self.whole is not None
        with checkpoint.completed(partial, run, state, random):
            wait_for(written)
            checkpoint.restore_for_inference(partial, self.whole)
            checkpoint.export_networks(self.whole, partial, run / "tokenizer", self.pad_id)

    def check(self) -> None:
        """Raise the error of a checkpoint that has failed; do not wait for it."""
        if self.writing is not None:
            with self.ranks.together():
                if self.ranks.first and self.writing.done():
                    self.writing.result()

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is complete; raise its error."""
        writing, self.writing = self.writing, None
        if writing is not None:
            with self.ranks.together():
                error = writing.exception()
                if error is not None and self.ranks.first:  # which knows the errors of all
                    raise error
