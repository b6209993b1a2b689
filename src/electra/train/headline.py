"""The line that a run begins with."""

from torch import nn

from electra.text.shards import Shards
from electra.train.run import Run


def parameter_counts(objective: nn.Module) -> dict[str, int]:
    """Parameters per network; shared ones count in each."""
    parts = {name: list(part.parameters()) for name, part in objective.named_children()}
    return {name: sum(p.numel() for p in part) for name, part in parts.items() if part}


def headline(run: Run, shards: Shards) -> str:
    """Where the run trains, from which step on, how large its networks and its data are."""
    counts = parameter_counts(run.objective)
    sizes = ", ".join(f"{name} {n / 1e6:.1f} M" for name, n in counts.items())
    where = "Resuming at step" if run.state.step else "Starting at step"
    precision = str(run.step.dtype).removeprefix("torch.")
    processes = f"{run.ranks.size} processes on " if run.ranks.size > 1 else ""
    later = [f"from {phase.begin:.0%} {phase.describe()}" for phase in run.phases[1:]]
    phases = f"; a step has {', '.join([run.phases[0].describe(), *later])}" if later else ""
    return (
        f"{where} {run.state.step:,} on {processes}{run.step.device.type} in {precision}: "
        f"parameters of the {sizes}; {shards.tokens / 1e6:.1f} M tokens of text, "
        f"budget {run.loop.budget}{phases}."
    )
