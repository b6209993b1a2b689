"""The six studies of the paper, each a function of the scale.

Arms carry the score that the paper prints; where it has only a figure, they have none.
"""

from collections.abc import Callable, Sequence

from electra.errors import UserError, nearest
from electra.studies.ablation import ABLATION, ablation
from electra.studies.study import Arm, Scale, Study, recipe_flops

BERT = ("objective.kind=mlm", "objective.mask_token_prob=0.8", "objective.random_token_prob=0.1")
TWO_STAGE = ("objective.kind=two-stage", "generator.width=1", "generator.tie=none")
ABLATION_STEPS = 500_000
"""Length of the runs in section 3.2 of the paper."""
EQUAL_STEPS = (
    "The paper trained each of these models for 500,000 steps; here all arms have the same training"
    " FLOPs, so an arm with a larger generator trains for fewer steps."
)


def objectives(scale: Scale) -> Study:
    """Table 5: objectives between BERT and ELECTRA."""
    arms = (
        Arm(name="ELECTRA", paper_score=85.0),
        Arm(name="All-Tokens MLM", overrides=("objective.kind=all-tokens-mlm",), paper_score=84.3),
        Arm(name="Replace MLM", overrides=("objective.kind=replace-mlm",), paper_score=82.4),
        Arm(name="ELECTRA 15 %", overrides=("objective.kind=rtd-masked",), paper_score=82.4),
        Arm(name="BERT", overrides=BERT, paper_score=82.2),
    )
    return Study(
        name="objectives",
        title="Objectives between BERT and ELECTRA (the paper's Table 5)",
        arms=arms,
        chart="bars",
        note="The paper's numbers are GLUE dev averages of models of base size.",
        scale=scale,
        recipe=scale.recipe,
        budget=scale.budget or recipe_flops(scale.recipe, 766_000),
    )


def generator_size(scale: Scale) -> Study:
    """Figure 3, left: the size of the generator."""
    widths = {"1/8": 0.125, "1/4": 0.25, "1/2": 0.5, "3/4": 0.75, "1": 1.0}
    unigram = Arm(name="unigram", overrides=("generator.kind=unigram",), x_label="unigram")
    sized = (
        Arm(name=f"width {label}", overrides=(f"generator.width={width:g}",), x_label=label)
        for label, width in widths.items()
    )
    return Study(
        name="generator-size",
        title="Size of the generator (the paper's Figure 3, left)",
        arms=(unigram, *sized),
        chart="lines",
        x_axis="width of the generator as a fraction of the discriminator's",
        note="The paper shows the scores only in a figure and finds that generators of 1/4 to 1/2 "
        f"of the discriminator's width work best. {EQUAL_STEPS}",
        scale=scale,
        recipe=scale.recipe,
        budget=scale.budget or recipe_flops(scale.recipe, ABLATION_STEPS),
    )


def tying(scale: Scale) -> Study:
    """Section 3.2: which weights generator and discriminator share."""
    printed = {"none": 83.6, "embeddings": 84.3, "all": 84.4, "gdes": None}
    arms = tuple(
        Arm(name=tie, overrides=("generator.width=1", f"generator.tie={tie}"), paper_score=score)
        for tie, score in printed.items()
    )
    return Study(
        name="tying",
        title="Weights that generator and discriminator share (the paper's section 3.2)",
        arms=arms,
        chart="bars",
        note="Generator and discriminator have the same size. The paper's numbers are GLUE dev "
        "scores after 500,000 steps; here all arms have the same training FLOPs, which makes "
        "little difference. `gdes` is not in the paper: the discriminator's embeddings are the "
        "generator's plus a table of its own, and its loss trains only that table (DeBERTaV3).",
        scale=scale,
        recipe=scale.recipe,
        budget=scale.budget
        or recipe_flops(scale.recipe, ABLATION_STEPS, ["generator.width=1", "generator.tie=none"]),
    )


def training_algorithms(scale: Scale) -> Study:
    """Figure 3, right: joint, two-stage and adversarial training."""
    return Study(
        name="training-algorithms",
        title="Training algorithms (the paper's Figure 3, right)",
        arms=(
            Arm(name="joint"),
            Arm(name="two-stage", overrides=TWO_STAGE),
            Arm(name="adversarial", overrides=("objective.kind=adversarial",)),
            Arm(name="BERT", overrides=BERT),
        ),
        chart="bars",
        note="The paper shows the scores only in a figure and finds that two-stage and adversarial "
        "training both beat BERT and lose to joint training. Two-stage training initialises the "
        "discriminator with the generator's weights, so both networks have the same size.",
        scale=scale,
        recipe=scale.recipe,
        budget=scale.budget or recipe_flops(scale.recipe, ABLATION_STEPS),
    )


def efficiency(scale: Scale) -> Study:
    """Table 1 and Figure 4: the score against training compute."""
    printed = {6.25: 74.1, 12.5: 76.0, 25.0: 77.7, 50.0: 79.0, 100.0: 79.9}
    none: tuple[str, ...] = ()
    series = {"ELECTRA": (none, printed), "BERT": (BERT, {100.0: 75.1})}
    arms = tuple(
        Arm(
            name=f"{model} {percent:g} %",
            overrides=overrides,
            paper_score=scores.get(percent),
            series=model,
            x_label=f"{percent:g} %",
            budget_fraction=percent / 100,
        )
        for model, (overrides, scores) in series.items()
        for percent in printed
    )
    name = "paper.small" if scale.name == "paper" else scale.recipe
    return Study(
        name="efficiency",
        title="Score against training compute (the paper's Table 1 and Figure 4)",
        arms=arms,
        chart="lines",
        x_axis="FLOPs",
        note="Each point is a separate run with a fraction of the budget and a complete schedule, "
        "not a checkpoint of a longer run, where the learning rate is still high. The "
        "paper's numbers are the GLUE dev averages of ELECTRA-Small and BERT-Small in Table 1.",
        scale=scale,
        recipe=name,
        budget=scale.budget or recipe_flops(name, 1_000_000),
    )


def hidden_size(scale: Scale) -> Study:
    """Figure 4, left: ELECTRA and BERT at several sizes."""
    sizes = {"tiny": (64, 128, 256), "small": (128, 256, 512), "paper": (128, 256, 512, 768)}
    arms = tuple(
        Arm(
            name=f"{model} {hidden}",
            overrides=(
                f"model.hidden={hidden}",
                f"model.heads={hidden // 64}",
                *((f"model.embedding={hidden}",) if scale.name == "paper" else ()),
                *overrides,
            ),
            series=model,
            x_label=str(hidden),
        )
        for model, overrides in {"ELECTRA": (), "BERT": BERT}.items()
        for hidden in sizes[scale.name]
    )
    return Study(
        name="hidden-size",
        title="ELECTRA and BERT at several sizes (the paper's Figure 4, left)",
        arms=arms,
        chart="lines",
        x_axis="hidden width",
        note="The paper shows the scores only in a figure and says that the gains are particularly "
        "strong for small models. Here all arms have the same training FLOPs, so a wider model "
        "trains for fewer steps.",
        scale=scale,
        recipe=scale.recipe,
        budget=scale.budget or recipe_flops(scale.recipe, 766_000),
    )


STUDIES: dict[str, Callable[[Scale], Study]] = {
    "objectives": objectives,
    "generator-size": generator_size,
    "tying": tying,
    "training-algorithms": training_algorithms,
    "efficiency": efficiency,
    "hidden-size": hidden_size,
}


def find_study(name: str, scale: Scale, arms: Sequence[str] = ()) -> Study:
    """Return the study with that name at a scale; `arms` are those of an ablation."""
    if name == ABLATION:
        return ablation(scale, arms)
    if name not in STUDIES:
        raise UserError(f"There is no study '{name}': {nearest(name, [*STUDIES, ABLATION])}")
    if arms:
        raise UserError(
            f"--arm adds an arm to the study {ABLATION}; those of {name} are fixed, and --arms "
            "selects some of them."
        )
    return STUDIES[name](scale)
