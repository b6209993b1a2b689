"""What is learned from: the objective of a run and its settings."""

from dataclasses import dataclass
from typing import Literal

from electra.errors import UserError
from electra.objectives.corrupt import MaskSampling, Rounding

Kind = Literal[
    "rtd",
    "rtd-masked",
    "mlm",
    "replace-mlm",
    "all-tokens-mlm",
    "two-stage",
    "adversarial",
    "electric",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveConfig:
    """The objective; by default the one of the paper."""

    kind: Kind = "rtd"
    """'rtd' is ELECTRA; 'rtd-masked' judges the masked positions alone (ELECTRA 15 %); 'mlm' is
    BERT; 'replace-mlm' and 'all-tokens-mlm' predict words from the generator's samples; 'two-stage'
    trains one network after the other; 'adversarial' has the generator raise the discriminator's
    loss; 'electric' is the energy-based cloze model."""
    mask_rate: float = 0.15
    """Share of a row's tokens that the generator predicts and its samples replace."""
    mask_rate_end: float = 0.0
    """Mask rate at the end of the run, approached linearly; 0 stays at mask_rate. Held-out figures
    are always taken at mask_rate, so that they compare."""
    mask_token_prob: float = 0.85
    """Share of the drawn positions that the generator sees as [MASK]; the others keep their token.
    The released code has 0.85, the paper's text speaks of masking all of them: 1.0."""
    random_token_prob: float = 0.0
    """mlm: share of the drawn positions that show a random word; BERT's 80/10/10 is
    objective.mask_token_prob=0.8 objective.random_token_prob=0.1."""
    mask_count_rounding: Rounding = "round"
    """How mask_rate x tokens becomes a number: 'round' as the released code (19 of 128),
    'ceil' as the paper's text (20 of 128)."""
    mask_sampling: MaskSampling = "distinct"
    """'distinct' draws each position at most once; 'repeated' draws with replacement as the
    released code does, so that fewer tokens (13.8 % of 128) are masked."""
    temperature: float = 1.0
    """Temperature of the generator's samples."""
    disallow_correct: bool = False
    """Never sample the true token, so that each drawn position is replaced."""
    generator_weight: float = 1.0
    """Weight of the generator's loss, mostly masked language modelling."""
    discriminator_weight: float = 50.0
    """Weight of the detection loss."""
    model_weight: float = 1.0
    """replace-mlm, all-tokens-mlm: weight of the loss of the network that is kept."""
    gate_weight: float = 1.0
    """all-tokens-mlm: weight of the copy gate's own loss, which tells it where to copy; 0 leaves
    the gate to the loss of the mixture, as the paper's text has it."""
    init_from_generator: bool = True
    """two-stage: start the discriminator from the generator's weights, which needs equal sizes;
    without it the discriminator may never leave the majority class."""

    def __post_init__(self) -> None:
        shares = (
            self.mask_token_prob,
            self.random_token_prob,
            self.mask_token_prob + self.random_token_prob,
        )
        if not 0 < self.mask_rate < 1 or not all(0 <= share <= 1 for share in shares):
            raise UserError(
                "objective.mask_rate, mask_token_prob, random_token_prob and the sum of these last "
                "two are shares between 0 and 1."
            )
        if not 0 <= self.mask_rate_end < 1:
            raise UserError("objective.mask_rate_end is a share between 0 and 1; 0 is no schedule.")
        if self.temperature < 1e-6:
            raise UserError("objective.temperature is a number from 1e-6 on.")
        weights = ("generator_weight", "discriminator_weight", "model_weight", "gate_weight")
        for name in weights:
            if getattr(self, name) < 0:
                raise UserError(f"objective.{name} is a number from 0 on.")
        refusals = (
            (
                self.random_token_prob > 0 and self.kind != "mlm",
                "objective.random_token_prob puts random words into the input of a masked language "
                "model that is kept: use it with objective.kind=mlm, or leave it at 0.",
            ),
            (
                not self.init_from_generator and self.kind != "two-stage",
                "objective.init_from_generator says how the second of two stages begins: use it "
                "with objective.kind=two-stage, or leave it at true.",
            ),
            (
                self.mask_sampling == "repeated" and self.kind in ("adversarial", "electric"),
                f"objective.kind={self.kind} has one sample for each position: leave "
                "objective.mask_sampling at distinct.",
            ),
            (
                self.disallow_correct and self.kind == "electric",
                "objective.kind=electric needs the probability of every sample, the true token "
                "included: leave objective.disallow_correct at false.",
            ),
        )
        for refused, sentence in refusals:
            if refused:
                raise UserError(sentence)

    @property
    def top_rate(self) -> float:
        """The highest mask rate of the run."""
        return max(self.mask_rate, self.mask_rate_end)

    def rate_at(self, progress: float) -> float:
        """The mask rate of the step that starts at `progress`."""
        end = self.mask_rate_end or self.mask_rate
        return self.mask_rate + (end - self.mask_rate) * min(progress, 1.0)
