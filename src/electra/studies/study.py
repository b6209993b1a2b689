"""A study: arms that differ in one thing and train for the same FLOPs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from electra.config import override
from electra.errors import UserError, nearest
from electra.models.flops import row_flops
from electra.models.paper_flops import PAPER_VOCABULARY, paper_row_flops
from electra.recipes import recipe
from electra.train.budget import parse_budget
from electra.train.pretrain import row_workloads
from electra.train.settings import PretrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Model size and training length of a study."""

    name: str
    recipe: str
    budget: float
    """FLOPs of an arm; 0 means the paper's length."""
    note: str


SCALES = {
    "tiny": Scale(
        name="tiny",
        recipe="toy",
        budget=1e12,
        note="The scale `tiny` shows that the study runs. It proves nothing: its models and "
        "budgets are far too small to show the differences that the paper measured.",
    ),
    "small": Scale(
        name="small",
        recipe="paper.small",
        budget=5e16,
        note="The scale `small` has models of the size of ELECTRA-Small, trained for a fraction of "
        "the paper's compute.",
    ),
    "paper": Scale(
        name="paper",
        recipe="paper.base",
        budget=0,
        note="The scale `paper` has the paper's model sizes and training lengths.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One configuration that a study compares with others."""

    name: str
    overrides: tuple[str, ...] = ()
    """Settings that differ from the recipe."""
    paper_score: float | None = None
    """The score that the paper prints, if any."""
    series: str = ""
    """In a line chart: the line that it is a point of."""
    x_label: str = ""
    """In a line chart: its label on the x-axis."""
    budget_fraction: float = 1.0
    """Fraction of the study's budget that it trains for."""
    budget: str = ""
    """A budget of its own instead, such as `25min`."""
    learning_rate: str = ""
    """Its learning rate, if `--learning-rates` chose it for this arm alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The arms of a comparison and how to show them."""

    name: str
    title: str
    arms: tuple[Arm, ...]
    chart: Literal["bars", "lines"]
    note: str
    """What the paper did, and what differs here."""
    x_axis: str = ""
    """Title of the x-axis of a line chart; `FLOPs` is a numeric axis, others use `x_label`."""
    scale: Scale
    recipe: str
    budget: float
    """FLOPs of an arm, as counted by `models/flops.py`."""
    from_paper: bool = True
    """Whether it repeats a comparison of the paper; otherwise its arms are the user's own."""


def find_scale(name: str) -> Scale:
    """Return the scale with that name."""
    if name not in SCALES:
        raise UserError(f"There is no scale '{name}': {nearest(name, list(SCALES))}")
    return SCALES[name]


def select_arms(study: Study, names: Sequence[str]) -> Study:
    """Return the study with only the named arms; case does not matter."""
    known = {arm.name.lower(): arm for arm in study.arms}
    if not names:
        known_names = ", ".join(arm.name for arm in study.arms)
        raise UserError(f"--arms names no arm: {study.name} has {known_names}.")
    for name in names:
        if name.lower() not in known:
            hint = nearest(name, [arm.name for arm in study.arms])
            raise UserError(f"{study.name} has no arm '{name}': {hint}")
    wanted = {name.lower() for name in names}
    return replace(study, arms=tuple(arm for name, arm in known.items() if name in wanted))


def row_costs(config: PretrainConfig) -> tuple[int, int]:
    """Return the training FLOPs of a row: by our count and by the paper's rules."""
    works, length = row_workloads(config), config.data.lengths[0]
    return row_flops(works, length), paper_row_flops(works, length)


def recipe_flops(name: str, steps: int, overrides: Sequence[str] = ()) -> float:
    """Return the FLOPs of `steps` steps of a recipe with the paper's vocabulary, to four digits."""
    config = override(recipe(name), overrides)
    config = replace(config, model=replace(config.model, vocab_size=PAPER_VOCABULARY))
    return float(f"{steps * config.data.phases[0].batch_size * row_costs(config)[0]:.3e}")


def set_budget(study: Study, text: str) -> Study:
    """Return the study with another budget.

    A list of budgets gives each curve of a study of compute an arm for each of them.
    """
    budgets = [part.strip() for part in text.split(",")]
    if len(budgets) == 1 and not study.from_paper:
        parse_budget(text)
        return replace(study, arms=tuple(replace(arm, budget=text) for arm in study.arms))
    if len(budgets) == 1:
        return replace(study, budget=parse_flops_budget(text))
    if study.x_axis != "FLOPs":
        raise UserError(
            f"--budget {text}: the arms of {study.name} are compared at one budget; give one, such "
            f"as {budgets[0]}."
        )
    for budget in budgets:
        parse_budget(budget)
    curves = {arm.series: arm.overrides for arm in study.arms}
    arms = tuple(
        Arm(name=f"{series} {budget}", overrides=overrides, series=series, budget=budget)
        for series, overrides in curves.items()
        for budget in dict.fromkeys(budgets)
    )
    return replace(study, arms=arms)


def parse_flops_budget(text: str) -> float:
    """Parse a budget such as `5e16flops`."""
    budget = parse_budget(text)
    if budget.unit != "flops":
        raise UserError(
            f"--budget {text}: the arms of a study are compared at equal FLOPs, so write "
            "a budget like 5e16flops."
        )
    return budget.amount


def check_overrides(study: Study, overrides: Sequence[str], rates: Sequence[str] = ()) -> None:
    """Refuse settings that the study itself controls; `rates` are those of `--learning-rates`."""
    arms = study.arms if study.from_paper else ()  # one's own arms change what all arms have
    varied = {o.partition("=")[0] for arm in arms for o in arm.overrides}
    fixed = {
        "train.budget": "give --budget instead",
        "train.seed": "give --seeds instead",
        "data.folder": "give --data instead",
        **({"optim.lr": "--learning-rates chooses it for each arm"} if rates else {}),
    } | dict.fromkeys(varied, "its arms differ in it, so leave it out")
    for assignment in overrides:
        key = current_key(assignment.partition("=")[0])
        if key in fixed:
            raise UserError(f"The study {study.name} sets {key} itself: {fixed[key]}.")
        if assignment == "objective.kind=mlm" and all(k.startswith("generator.") for k in varied):
            raise UserError(
                f"The arms of {study.name} differ in their generators, and {assignment} has none: "
                "leave it out."
            )


def current_key(key: str) -> str:
    """Return today's name of a setting that may be given by an old name."""
    return PretrainConfig.RENAMED_KEYS.get(key, key)


def arm_config(study: Study, arm: Arm, seed: int, overrides: Sequence[str] = ()) -> PretrainConfig:
    """Return the configuration of an arm; `overrides` apply to all arms."""
    budget = arm.budget or f"{study.budget * arm.budget_fraction:.6g}flops"
    rate = (f"optim.lr={arm.learning_rate}",) if arm.learning_rate else ()
    own = (*arm.overrides, *rate, f"train.budget={budget}", f"train.seed={seed}")
    try:
        config = override(recipe(study.recipe), (*overrides, *own))
        config.data.single_phase("A study")
        return config
    except UserError as error:
        raise UserError(f"The arm '{arm.name}' of {study.name} is refused: {error}") from None
