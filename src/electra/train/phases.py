"""Phases of a run: sequence length, batch size and dropout may change in its course.

`data.seq_length=128,512@0.9` trains on rows of 128 tokens, and from 90 % of the run's progress on
rows of 512. `data.batch_size=128,256@0.2` is written in the same way. It counts rows of the first
length: a batch of longer rows has fewer of them, so that its tokens stay the same.
`train.dropout_start=0.5` trains the first half of the run without dropout.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from electra.errors import UserError
from electra.models.encoder import Encoder
from electra.optim.shards import whole_rows
from electra.train.step import Step

SEPARATORS = re.compile(r"\s*,\s*")
ENTRY = re.compile(r"(-?\d{1,18})(?:@(\d*\.?\d+))?")


class Phase(NamedTuple):
    """A part of a run with one sequence length and one batch size, with or without dropout."""

    begin: float
    """The progress at which it begins."""
    seq_length: int
    batch_size: int
    dropout: bool = True

    def describe(self) -> str:
        """A few words for people."""
        without = "" if self.dropout else " without dropout"
        return f"{self.batch_size} rows of {self.seq_length} tokens{without}"


def parse_schedule(setting: int | str, key: str) -> list[tuple[float, int]]:
    """Parse `128`, or `128,512@0.9`: values, each with the progress at which it begins."""
    entries = [ENTRY.fullmatch(text) for text in SEPARATORS.split(str(setting).strip())]
    wrong = UserError(
        f"{key}={setting} is neither a whole number nor a schedule such as 128,512@0.9: a first "
        "value, and for each further one the progress between 0 and 1 at which it begins."
    )
    parsed = []
    for number, match in enumerate(entries):
        if match is None or (match[2] is None) != (number == 0):
            raise wrong
        parsed.append((float(match[2] or 0), int(match[1])))
    begins = [begin for begin, _ in parsed]
    if begins[-1] >= 1 or any(a >= b for a, b in pairwise(begins)):
        raise wrong
    if any(value < 1 for _, value in parsed):
        raise UserError(f"{key} must be at least 1.")
    return parsed


def build_phases(seq_length: int | str, batch_size: int | str) -> tuple[Phase, ...]:
    """Combine both schedules; a phase begins where either of them changes."""
    lengths = parse_schedule(seq_length, "data.seq_length")
    batches = parse_schedule(batch_size, "data.batch_size")
    phases = []
    for begin in sorted({begin for begin, _ in (*lengths, *batches)}):
        length, batch = value_at(lengths, begin), value_at(batches, begin)
        tokens = batch * lengths[0][1]
        if tokens % length:
            raise UserError(
                f"A batch of {batch} rows of {lengths[0][1]} tokens is not a whole number of rows "
                f"of {length} tokens, and the tokens of a batch stay the same: change "
                "data.batch_size or data.seq_length."
            )
        phases.append(Phase(begin, length, tokens // length))
    return tuple(phases)


def split_at_dropout(phases: Sequence[Phase], start: float) -> tuple[Phase, ...]:
    """Split phases so that dropout begins at the progress `start`."""
    begins = sorted({*(phase.begin for phase in phases), start})
    return tuple(phase_at(phases, b)._replace(begin=b, dropout=b >= start) for b in begins)


def value_at(schedule: Sequence[tuple[float, int]], progress: float) -> int:
    """Return the value of a schedule at some progress."""
    return [value for begin, value in schedule if begin <= progress][-1]


def phase_at(phases: Sequence[Phase], progress: float) -> Phase:
    """Return the phase of the step that starts at `progress`."""
    return [phase for phase in phases if phase.begin <= progress][-1]


@torch.no_grad()
def extend_positions_(step: Step, trained: int, length: int, known: int = 0) -> None:
    """Prepare the position rows from `trained` to `length`, which no step has trained.

    Their moments become copies: those of row p are those of row p modulo `trained`. Without a
    second moment, Adam's first updates of a row would be up to ten times as large as the others'.

    Their weights are random numbers and become copies too, with which attention to neighbours
    works nearly everywhere (Longformer, section 5). Rows below `known` were trained before the run
    and stay. So do the waves of `model.init=local`, which continue beyond the trained rows.
    """
    for encoder in step.objective.modules():
        if isinstance(encoder, Encoder):
            table = encoder.embeddings.position.weight
            for moment in step.optimizer.moments(table).values():
                _repeat_rows_(moment, trained, length)
            if encoder.config.init == "paper":
                averages = [] if step.ema is None else step.ema.averages_of(table)
                for tensor in (table, *averages):
                    _repeat_rows_(tensor, max(trained, known), length)


def _repeat_rows_(tensor: Tensor, count: int, until: int) -> None:
    """Fill the rows from `count` to `until` with copies of those before, in their order."""
    with whole_rows(tensor) as table:
        rows = torch.arange(count, max(count, until), device=table.device)
        table[rows] = table[rows % count]
