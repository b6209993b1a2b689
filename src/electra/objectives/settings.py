"""The settings of objectives."""

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
    """The objective; the defaults are those of the paper."""

    kind: Kind = "rtd"
    """'rtd' is ELECTRA; 'rtd-masked' has a detection loss at masked positions only (ELECTRA 15 %);
    'mlm' is BERT; 'replace-mlm' and 'all-tokens-mlm' predict the original tokens from the
    generator's samples; 'two-stage' trains one network after the other; 'adversarial' has the
    generator raise the discriminator's loss; 'electric' is the energy-based cloze model."""
    mask_rate: float = 0.15
    """Fraction of the tokens that are masked: the generator predicts and replaces them."""
    mask_rate_end: float = 0.0
    """Mask rate at the end of the run, reached linearly; 0 means a constant `mask_rate`. Validation
    always uses `mask_rate`, so that its metrics compare."""
    mask_token_prob: float = 0.85
    """Probability that the generator sees [MASK] at a masked position; the others keep their token.
    The released code has 0.85; the paper's text replaces all of them: 1.0."""
    random_token_prob: float = 0.0
    """mlm: probability that a masked position shows a random token; BERT's 80/10/10 is
    objective.mask_token_prob=0.8 objective.random_token_prob=0.1."""
    mask_count_rounding: Rounding = "round"
    """How mask_rate x tokens is rounded: 'round' as google-research/electra (19 of 128), 'ceil' as
    the paper's text (20 of 128)."""
    mask_sampling: MaskSampling = "distinct"
    """'distinct' samples each position at most once; 'repeated' samples with replacement as the
    released code does, so that fewer tokens (13.8 % of 128) are masked."""
    temperature: float = 1.0
    """Sampling temperature of the generator."""
    disallow_correct: bool = False
    """Never sample the original token, so that every masked position is replaced."""
    generator_weight: float = 1.0
    """Weight of the generator's loss."""
    discriminator_weight: float = 50.0
    """Weight of the detection loss."""
    model_weight: float = 1.0
    """replace-mlm, all-tokens-mlm: weight of the loss of the network that is kept."""
    gate_weight: float = 1.0
    """all-tokens-mlm: weight of the copy gate's own loss; with 0 only the loss of the mixture
    trains the gate, as in the paper's text."""
    init_from_generator: bool = True
    """two-stage: initialise the discriminator from the generator, which needs equal sizes; without
    it the discriminator may keep predicting the majority class."""

    generator_first: float = 0.0
    """rtd: fraction of the run, at its start, in which only the generator is trained. The
    discriminator and all weights that it uses do not change meanwhile. Use it for a trained
    discriminator with a new generator (`--init-from`)."""

    def __post_init__(self) -> None:
        shares = (
            self.mask_token_prob,
            self.random_token_prob,
            self.mask_token_prob + self.random_token_prob,
        )
        if not 0 < self.mask_rate < 1 or not all(0 <= share <= 1 for share in shares):
            raise UserError(
                "objective.mask_rate, mask_token_prob, random_token_prob and the sum of the last "
                "two must be between 0 and 1."
            )
        if not 0 <= self.mask_rate_end < 1:
            raise UserError("objective.mask_rate_end must be at least 0 and below 1.")
        if not 0 <= self.generator_first < 1:
            raise UserError("objective.generator_first must be at least 0 and below 1.")
        if self.temperature < 1e-6:
            raise UserError("objective.temperature must be at least 1e-6.")
        weights = ("generator_weight", "discriminator_weight", "model_weight", "gate_weight")
        for name in weights:
            if getattr(self, name) < 0:
                raise UserError(f"objective.{name} must be at least 0.")
        refusals = (
            (
                self.random_token_prob > 0 and self.kind != "mlm",
                "objective.random_token_prob is a setting of objective.kind=mlm: set that, or "
                "leave it at 0.",
            ),
            (
                not self.init_from_generator and self.kind != "two-stage",
                "objective.init_from_generator is a setting of objective.kind=two-stage: set that, "
                "or leave it at true.",
            ),
            (
                self.generator_first > 0 and self.kind != "rtd",
                "objective.generator_first is a setting of objective.kind=rtd: set that, or leave "
                "it at 0.",
            ),
            (
                self.mask_sampling == "repeated" and self.kind in ("adversarial", "electric"),
                f"objective.kind={self.kind} needs one sample per position: leave "
                "objective.mask_sampling at distinct.",
            ),
            (
                self.disallow_correct and self.kind == "electric",
                "objective.kind=electric needs the probability of every token, the original one "
                "included: leave objective.disallow_correct at false.",
            ),
        )
        for refused, message in refusals:
            if refused:
                raise UserError(message)

    @property
    def top_rate(self) -> float:
        """The highest mask rate of the run."""
        return max(self.mask_rate, self.mask_rate_end)

    def rate_at(self, progress: float) -> float:
        """Return the mask rate of the step that starts at `progress`."""
        end = self.mask_rate_end or self.mask_rate
        return self.mask_rate + (end - self.mask_rate) * min(progress, 1.0)
