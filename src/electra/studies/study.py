"""What a study is: arms that differ in one thing and are trained at the same cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from electra.config import override
from electra.errors import UserError, nearest
from electra.models.flops import row_flops
from electra.models.paper_flops import PAPER_VOCABULARY, paper_row_flops
from electra.recipes import recipe
from electra.train.budget import parse_budget
from electra.train.pretrain import PretrainConfig, row_workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the models of a study are, and how long they train."""

    name: str
    recipe: str
    budget: float
    """FLOPs of an arm; 0 stands for the length that the paper trained."""
    note: str


SCALES = {
    "tiny": Scale(
        name="tiny",
        recipe="toy",
        budget=1e12,
        note="The scale `tiny` shows that the study runs. It proves nothing: such models and such "
        "budgets are far too small for the differences that the paper measured.",
    ),
    "small": Scale(
        name="small",
        recipe="paper.small",
        budget=5e16,
        note="The scale `small` has models of the size of ELECTRA-Small, trained for a small part "
        "of the paper's compute.",
    ),
    "paper": Scale(
        name="paper",
        recipe="paper.base",
        budget=0,
        note="The scale `paper` has the paper's sizes and lengths.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One of the things that a study compares."""

    name: str
    overrides: tuple[str, ...] = ()
    """What it changes in the recipe."""
    paper: float | None = None
    """The paper's score, where it prints one."""
    line: str = ""
    """In a curve: the line of which it is a point."""
    tick: str = ""
    """In a curve: its place on the horizontal axis."""
    share: float = 1.0
    """Share of the study's budget that it trains for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Arms, and how to look at them."""

    name: str
    title: str
    arms: tuple[Arm, ...]
    form: Literal["bars", "curve"]
    note: str
    """What the paper did and what is done otherwise here."""
    axis: str = ""
    """Of a curve; 'FLOPs' is measured, anything else has the arms' ticks in their order."""
    scale: Scale
    recipe: str
    budget: float
    """FLOPs of an arm by our count (models/flops.py)."""


def find_scale(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise UserError(f"There is no scale '{name}': {nearest(name, list(SCALES))}")
    return SCALES[name]


def only_arms(study: Study, names: Sequence[str]) -> Study:
    """The study with these of its arms; upper and lower case are the same."""
    known = {arm.name.lower(): arm for arm in study.arms}
    if not names:
        told = ", ".join(arm.name for arm in study.arms)
        raise UserError(f"--arms names no arm: {study.name} has {told}.")
    for name in names:
        if name.lower() not in known:
            told = nearest(name, [arm.name for arm in study.arms])
            raise UserError(f"{study.name} has no arm '{name}': {told}")
    wanted = {name.lower() for name in names}
    return replace(study, arms=tuple(arm for name, arm in known.items() if name in wanted))


def row_costs(config: PretrainConfig) -> tuple[int, int]:
    """FLOPs of a row in a step: by our count and by the paper's rules."""
    works, length = row_workloads(config), config.data.seq_length
    return row_flops(works, length), paper_row_flops(works, length)


def full_length(name: str, steps: int, overrides: Sequence[str] = ()) -> float:
    """FLOPs of so many steps of a recipe with the paper's vocabulary, to four digits."""
    config = override(recipe(name), overrides)
    config = replace(config, model=replace(config.model, vocab_size=PAPER_VOCABULARY))
    return float(f"{steps * config.data.batch_size * row_costs(config)[0]:.3e}")


def read_budget(text: str) -> float:
    """The FLOPs of `5e16flops`."""
    budget = parse_budget(text)
    if budget.unit != "flops":
        raise UserError(
            f"--budget {text}: the arms of a study are compared at equal FLOPs, so write it as "
            "5e16flops."
        )
    return budget.amount


def check_changes(study: Study, changes: Sequence[str]) -> None:
    """Refuse settings that are the study's own to vary."""
    varied = {o.partition("=")[0] for arm in study.arms for o in arm.overrides}
    fixed = {
        "train.budget": "give --budget instead",
        "train.seed": "give --seeds instead",
        "data.folder": "give --data instead",
    } | dict.fromkeys(varied, "its arms differ in it, so leave it out")
    for change in changes:
        key = change.partition("=")[0]
        if key in fixed:
            raise UserError(f"The study {study.name} sets {key} itself: {fixed[key]}.")
        if change == "objective.kind=mlm" and all(k.startswith("generator.") for k in varied):
            raise UserError(
                f"The arms of {study.name} differ in their generators; {change} has none."
            )


def configure(study: Study, arm: Arm, seed: int, changes: Sequence[str] = ()) -> PretrainConfig:
    """The run of an arm; `changes` are settings that all arms have."""
    spent = f"train.budget={study.budget * arm.share:.6g}flops"
    settings = (*changes, *arm.overrides, spent, f"train.seed={seed}")
    try:
        return override(recipe(study.recipe), settings)
    except UserError as error:
        raise UserError(f"The arm '{arm.name}' of {study.name} is refused: {error}") from None
