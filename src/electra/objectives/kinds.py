"""Every objective by its name, and which settings do not go together."""

from collections.abc import Callable

from electra.errors import UserError
from electra.models.electra import (
    Discriminator,
    Generator,
    GeneratorConfig,
    build_body,
    build_pair,
    generator_sizes,
    init_attention_,
)
from electra.models.encoder import Encoder, EncoderConfig
from electra.models.frequency_generator import FrequencyGenerator
from electra.models.two_tower import TwoTowerGenerator
from electra.objectives.adversarial import Adversarial
from electra.objectives.all_tokens_mlm import AllTokensMlm
from electra.objectives.electric import Electric
from electra.objectives.mlm import MaskedLanguageModel
from electra.objectives.objective import Objective, VocabInfo
from electra.objectives.replace_mlm import ReplaceMlm
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.rtd_masked import MaskedTokenDetection
from electra.objectives.settings import Kind, ObjectiveConfig
from electra.objectives.two_stage import TwoStage

Build = Callable[[ObjectiveConfig, EncoderConfig, GeneratorConfig, VocabInfo], Objective]


def build_simple(
    model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> FrequencyGenerator:
    """A generator that does not learn; the frequencies are counted when a run begins."""
    counted = generator.kind == "unigram"
    return FrequencyGenerator(model, vocab.absent_ids, vocab.special_ids, counted=counted)


def build_rtd(
    config: ObjectiveConfig, model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> Objective:
    """Detection of what a generator put; 'rtd' and 'rtd-masked'."""
    small: Generator | FrequencyGenerator
    if generator.kind == "transformer":
        small, discriminator = build_pair(model, generator, vocab.absent_ids)
    else:
        discriminator = Discriminator(Encoder(model))
        init_attention_(model, discriminator.encoder)
        small = build_simple(model, generator, vocab)
    kind = MaskedTokenDetection if config.kind == "rtd-masked" else ReplacedTokenDetection
    return kind(config, small, discriminator, vocab)


def build_mlm(
    config: ObjectiveConfig, model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> Objective:
    """A masked language model alone."""
    mlm = Generator(Encoder(model), vocab.absent_ids)
    init_attention_(model, mlm.encoder)
    return MaskedLanguageModel(config, mlm, vocab)


def build_replace_mlm(
    config: ObjectiveConfig, model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> Objective:
    """A big masked language model beside a generator; 'replace-mlm' and 'all-tokens-mlm'."""
    mlm = Generator(Encoder(model), vocab.absent_ids)
    small: Generator | FrequencyGenerator
    if generator.kind == "transformer":
        small = Generator(build_body(model, generator, mlm), vocab.absent_ids)
    else:
        init_attention_(model, mlm.encoder)
        small = build_simple(model, generator, vocab)
    kind = AllTokensMlm if config.kind == "all-tokens-mlm" else ReplaceMlm
    return kind(config, small, mlm, vocab)


def build_two_stage(
    config: ObjectiveConfig, model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> Objective:
    """Two networks that have nothing in common; of one size, they are alike in each width."""
    same = (generator.width, generator.depth) == (1, 1)
    sizes = model if same else generator_sizes(model, generator)
    discriminator, small = (
        Discriminator(Encoder(model)),
        Generator(Encoder(sizes), vocab.absent_ids),
    )
    init_attention_(model, discriminator.encoder, small.encoder)
    return TwoStage(config, small, discriminator, vocab)


def build_adversarial(
    config: ObjectiveConfig, model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> Objective:
    """The pair of the paper, and a baseline."""
    return Adversarial(config, *build_pair(model, generator, vocab.absent_ids), vocab)


def build_electric(
    config: ObjectiveConfig, model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> Objective:
    """Two towers of the generator's size beside the network that gives the energies."""
    discriminator = Discriminator(Encoder(model))
    forwards = build_body(model, generator, discriminator)
    backwards = Encoder(forwards.config, embeddings=forwards.embeddings)
    init_attention_(model, backwards)
    return Electric(
        config, TwoTowerGenerator(forwards, backwards, vocab.absent_ids), discriminator, vocab
    )


KINDS: dict[Kind, Build] = {
    "rtd": build_rtd,
    "rtd-masked": build_rtd,
    "mlm": build_mlm,
    "replace-mlm": build_replace_mlm,
    "all-tokens-mlm": build_replace_mlm,
    "two-stage": build_two_stage,
    "adversarial": build_adversarial,
    "electric": build_electric,
}


def check_together(
    config: ObjectiveConfig, model: EncoderConfig, generator: GeneratorConfig
) -> None:
    """Refuse settings that do not go together, with the reason."""
    kind, share = config.kind, generator.tie
    if kind == "mlm":
        return  # there is no generator
    if generator.kind != "transformer":
        if kind in ("two-stage", "adversarial", "electric"):
            raise UserError(
                f"objective.kind={kind} trains its generator, and a {generator.kind} one has "
                "nothing to learn: set generator.kind=transformer."
            )
        if share in ("all", "gdes"):
            raise UserError(
                f"generator.kind={generator.kind} has no weights, so generator.tie={share} has "
                "nothing to share: leave generator.tie at embeddings."
            )
    if kind in ("replace-mlm", "all-tokens-mlm") and share == "gdes":
        raise UserError(
            f"objective.kind={kind} predicts words with its token table, which generator.tie="
            "gdes takes apart: set generator.tie=embeddings or none."
        )
    if kind == "electric" and share == "all":
        raise UserError(
            "objective.kind=electric has a generator of two towers, which cannot be the "
            "discriminator's one body: set generator.tie=embeddings, gdes or none."
        )
    if kind == "adversarial" and share == "all":
        raise UserError(
            "objective.kind=adversarial has the generator raise the loss that the discriminator "
            "lowers, which one body cannot do: set generator.tie=embeddings, gdes or none."
        )
    if kind == "two-stage":
        check_stages(config, generator)
    if generator.kind == "transformer":
        generator_sizes(model, generator)  # refuses what cannot be built


def check_stages(config: ObjectiveConfig, generator: GeneratorConfig) -> None:
    """What the two stages need of the generator."""
    if generator.tie != "none":
        raise UserError(
            "objective.kind=two-stage freezes the generator while the discriminator learns, so "
            "they cannot share weights: set generator.tie=none."
        )
    if config.init_from_generator and (generator.width, generator.depth) != (1, 1):
        raise UserError(
            "objective.kind=two-stage starts the discriminator from the generator's weights, so "
            "they need the same size: set generator.width=1 generator.depth=1, or "
            "objective.init_from_generator=false."
        )


def build(
    config: ObjectiveConfig, model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> Objective:
    """The networks of an objective with their initial weights, and its loss."""
    check_together(config, model, generator)
    return KINDS[config.kind](config, model, generator, vocab)
