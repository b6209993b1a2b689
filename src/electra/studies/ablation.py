"""A study of your own: a recipe, and changes to it that are tried one by one."""

import shlex
from collections.abc import Sequence

from electra.errors import UserError
from electra.studies.study import Arm, Scale, Study
from electra.studies.study_run import folder_name

ABLATION, BASELINE = "ablation", "recipe"


def ablation(scale: Scale, arms: Sequence[str]) -> Study:
    """Compare the recipe with `arms`, each written like `no dropout: model.dropout=0`."""
    if not arms:
        raise UserError(
            "An ablation needs at least one change of the recipe: give it with --arm, such as "
            "--arm 'no dropout: model.dropout=0 model.attention_dropout=0'."
        )
    parsed = (Arm(name=BASELINE), *map(parse_arm, arms))
    names = [folder_name(arm.name) for arm in parsed]  # equal ones would share their runs
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"Two arms are called '{name}': give one of them another name.")
    return Study(
        name=ABLATION,
        title=f"Changes to {scale.recipe}, one at a time",
        arms=parsed,
        chart="bars",
        note=f"The arm `{BASELINE}` has the settings that all arms share; each of the others "
        "changes what the table says.",
        scale=scale,
        recipe=scale.recipe,
        budget=scale.budget,
        from_paper=False,
    )


def parse_arm(text: str) -> Arm:
    """Parse `NAME: KEY=VALUE ...`; without a name, the settings are the name."""
    name, _, rest = text.rpartition(":")
    try:
        settings = shlex.split(rest)
    except ValueError:
        settings = []
    if not settings or not all("=" in setting.strip("=") for setting in settings):
        raise UserError(
            f"--arm '{text}' is not an arm: write a name and its settings, such as "
            "'no dropout: model.dropout=0 model.attention_dropout=0'."
        )
    return Arm(name=" ".join(name.split()) or " ".join(settings), overrides=tuple(settings))
