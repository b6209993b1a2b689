"""The six studies of the paper, each a function of the scale; its printed scores beside the arms.

Where the paper has only a figure, no number is given.
"""

from collections.abc import Callable

from electra.errors import UserError, nearest
from electra.studies.study import Arm, Scale, Study, full_length

BERT = ("objective.kind=mlm", "objective.mask_token_prob=0.8", "objective.random_token_prob=0.1")
TWO_STAGE = ("objective.kind=two-stage", "generator.width=1", "generator.tie=none")
ABLATION_STEPS = 500_000
"""Length of the runs of the paper's section 3.2."""
EQUAL_STEPS = (
    "The paper trained each of these models for 500,000 steps; here all arms have the same training"
    " FLOPs, so that an arm with a larger generator trains for fewer steps."
)


def objectives(scale: Scale) -> Study:
    """Table 5: where the gain comes from."""
    arms = (
        Arm(name="ELECTRA", paper=85.0),
        Arm(name="All-Tokens MLM", overrides=("objective.kind=all-tokens-mlm",), paper=84.3),
        Arm(name="Replace MLM", overrides=("objective.kind=replace-mlm",), paper=82.4),
        Arm(name="ELECTRA 15 %", overrides=("objective.kind=rtd-masked",), paper=82.4),
        Arm(name="BERT", overrides=BERT, paper=82.2),
    )
    return Study(
        name="objectives",
        title="Objectives between BERT and ELECTRA (the paper's Table 5)",
        arms=arms,
        form="bars",
        note="The paper's numbers are GLUE dev averages of models of the base size.",
        scale=scale,
        recipe=scale.recipe,
        budget=scale.budget or full_length(scale.recipe, 766_000),
    )


def generator_size(scale: Scale) -> Study:
    """Figure 3, left: how large a generator should be."""
    widths = {"1/8": 0.125, "1/4": 0.25, "1/2": 0.5, "3/4": 0.75, "1": 1.0}
    unigram = Arm(name="unigram", overrides=("generator.kind=unigram",), tick="unigram")
    sized = (
        Arm(name=f"width {tick}", overrides=(f"generator.width={width:g}",), tick=tick)
        for tick, width in widths.items()
    )
    return Study(
        name="generator-size",
        title="Size of the generator (the paper's Figure 3, left)",
        arms=(unigram, *sized),
        form="curve",
        axis="generator's width as a share of the discriminator's",
        note="The paper shows the scores in a figure only, and finds generators of 1/4 to 1/2 of "
        f"the discriminator's width best. {EQUAL_STEPS}",
        scale=scale,
        recipe=scale.recipe,
        budget=scale.budget or full_length(scale.recipe, ABLATION_STEPS),
    )


def tying(scale: Scale) -> Study:
    """Section 3.2: what generator and discriminator share."""
    printed = {"none": 83.6, "embeddings": 84.3, "all": 84.4}
    arms = tuple(
        Arm(name=share, overrides=("generator.width=1", f"generator.tie={share}"), paper=score)
        for share, score in printed.items()
    )
    return Study(
        name="tying",
        title="Weights that generator and discriminator share (the paper's section 3.2)",
        arms=arms,
        form="bars",
        note="Generator and discriminator have the same size. The paper's numbers are GLUE dev "
        "scores after 500,000 steps; here all arms have the same training FLOPs, which is nearly "
        "the same.",
        scale=scale,
        recipe=scale.recipe,
        budget=scale.budget
        or full_length(scale.recipe, ABLATION_STEPS, ["generator.width=1", "generator.tie=none"]),
    )


def training_algorithms(scale: Scale) -> Study:
    """Figure 3, right: other ways to train the two networks."""
    return Study(
        name="training-algorithms",
        title="Training algorithms (the paper's Figure 3, right)",
        arms=(
            Arm(name="joint"),
            Arm(name="two-stage", overrides=TWO_STAGE),
            Arm(name="adversarial", overrides=("objective.kind=adversarial",)),
            Arm(name="BERT", overrides=BERT),
        ),
        form="bars",
        note="The paper shows the scores in a figure only, and finds that two-stage and "
        "adversarial training both beat BERT and lose to joint training. Two-stage training starts "
        "the discriminator from the generator's weights, so that its two networks have one size.",
        scale=scale,
        recipe=scale.recipe,
        budget=scale.budget or full_length(scale.recipe, ABLATION_STEPS),
    )


def efficiency(scale: Scale) -> Study:
    """Table 1 and Figure 4: what is reached with how much compute."""
    printed = {6.25: 74.1, 12.5: 76.0, 25.0: 77.7, 50.0: 79.0, 100.0: 79.9}
    none: tuple[str, ...] = ()
    lines = {"ELECTRA": (none, printed), "BERT": (BERT, {100.0: 75.1})}
    arms = tuple(
        Arm(
            name=f"{line} {percent:g} %",
            overrides=overrides,
            paper=scores.get(percent),
            line=line,
            tick=f"{percent:g} %",
            share=percent / 100,
        )
        for line, (overrides, scores) in lines.items()
        for percent in printed
    )
    name = "paper.small" if scale.name == "paper" else scale.recipe
    return Study(
        name="efficiency",
        title="Score against training compute (the paper's Table 1 and Figure 4)",
        arms=arms,
        form="curve",
        axis="FLOPs",
        note="Each point is a run of its own with a share of the budget and a whole schedule, not "
        "a checkpoint of a longer run, whose learning rate would not have come down yet. The "
        "paper's numbers are the GLUE dev averages of ELECTRA-Small and BERT-Small in Table 1.",
        scale=scale,
        recipe=name,
        budget=scale.budget or full_length(name, 1_000_000),
    )


def hidden_size(scale: Scale) -> Study:
    """Figure 4, left: ELECTRA and BERT at several sizes."""
    sizes = {"tiny": (64, 128, 256), "small": (128, 256, 512), "paper": (128, 256, 512, 768)}
    arms = tuple(
        Arm(
            name=f"{line} {hidden}",
            overrides=(
                f"model.hidden={hidden}",
                f"model.heads={hidden // 64}",
                *((f"model.embedding={hidden}",) if scale.name == "paper" else ()),
                *overrides,
            ),
            line=line,
            tick=str(hidden),
        )
        for line, overrides in {"ELECTRA": (), "BERT": BERT}.items()
        for hidden in sizes[scale.name]
    )
    return Study(
        name="hidden-size",
        title="ELECTRA and BERT at several sizes (the paper's Figure 4, left)",
        arms=arms,
        form="curve",
        axis="hidden width",
        note="The paper shows the scores in a figure only, and says that the gains are "
        "particularly strong for small models. All arms have the same training FLOPs here, so that "
        "a wider model trains for fewer steps.",
        scale=scale,
        recipe=scale.recipe,
        budget=scale.budget or full_length(scale.recipe, 766_000),
    )


STUDIES: dict[str, Callable[[Scale], Study]] = {
    "objectives": objectives,
    "generator-size": generator_size,
    "tying": tying,
    "training-algorithms": training_algorithms,
    "efficiency": efficiency,
    "hidden-size": hidden_size,
}


def find_study(name: str, scale: Scale) -> Study:
    """The study of that name at a scale."""
    if name not in STUDIES:
        raise UserError(f"There is no study '{name}': {nearest(name, list(STUDIES))}")
    return STUDIES[name](scale)
