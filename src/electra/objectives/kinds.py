"""Build an objective from its settings, and reject settings that do not go together."""

from collections.abc import Callable

from electra.errors import UserError
from electra.models.electra import (
    Discriminator,
    Generator,
    GeneratorConfig,
    build_generator_encoder,
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
from electra.objectives.two_stage import GeneratorFirst, TwoStage

Build = Callable[[ObjectiveConfig, EncoderConfig, GeneratorConfig, VocabInfo], Objective]


def build_frequency_generator(
    model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> FrequencyGenerator:
    """Build a generator that does not learn; a run counts the frequencies when it starts."""
    counted = generator.kind == "unigram"
    return FrequencyGenerator(model, vocab.absent_ids, vocab.special_ids, counted=counted)


def build_rtd(
    config: ObjectiveConfig, model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> Objective:
    """Build `rtd` or `rtd-masked`."""
    generator_network: Generator | FrequencyGenerator
    if generator.kind == "transformer":
        generator_network, discriminator = build_pair(model, generator, vocab.absent_ids)
        if config.generator_first:
            return GeneratorFirst(config, generator_network, discriminator, vocab)
    else:
        discriminator = Discriminator(Encoder(model))
        init_attention_(model, discriminator.encoder)
        generator_network = build_frequency_generator(model, generator, vocab)
    kind = MaskedTokenDetection if config.kind == "rtd-masked" else ReplacedTokenDetection
    return kind(config, generator_network, discriminator, vocab)


def build_mlm(
    config: ObjectiveConfig, model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> Objective:
    """Build `mlm`."""
    mlm = Generator(Encoder(model), vocab.absent_ids)
    init_attention_(model, mlm.encoder)
    return MaskedLanguageModel(config, mlm, vocab)


def build_replace_mlm(
    config: ObjectiveConfig, model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> Objective:
    """Build `replace-mlm` or `all-tokens-mlm`."""
    mlm = Generator(Encoder(model), vocab.absent_ids)
    generator_network: Generator | FrequencyGenerator
    if generator.kind == "transformer":
        generator_network = Generator(
            build_generator_encoder(model, generator, mlm), vocab.absent_ids
        )
    else:
        init_attention_(model, mlm.encoder)
        generator_network = build_frequency_generator(model, generator, vocab)
    kind = AllTokensMlm if config.kind == "all-tokens-mlm" else ReplaceMlm
    return kind(config, generator_network, mlm, vocab)


def build_two_stage(
    config: ObjectiveConfig, model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> Objective:
    """Build `two-stage`: networks that share nothing; at equal width and depth, of equal sizes."""
    same = (generator.width, generator.depth) == (1, 1)
    sizes = model if same else generator_sizes(model, generator)
    discriminator = Discriminator(Encoder(model))
    generator_network = Generator(Encoder(sizes), vocab.absent_ids)
    init_attention_(model, discriminator.encoder, generator_network.encoder)
    return TwoStage(config, generator_network, discriminator, vocab)


def build_adversarial(
    config: ObjectiveConfig, model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> Objective:
    """Build `adversarial`."""
    return Adversarial(config, *build_pair(model, generator, vocab.absent_ids), vocab)


def build_electric(
    config: ObjectiveConfig, model: EncoderConfig, generator: GeneratorConfig, vocab: VocabInfo
) -> Objective:
    """Build `electric`: two towers of the generator's size, and the network with the energies."""
    discriminator = Discriminator(Encoder(model))
    forwards = build_generator_encoder(model, generator, discriminator)
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
    """Raise a `UserError` if settings do not go together."""
    kind, tie = config.kind, generator.tie
    if kind == "mlm":
        return  # there is no generator
    if generator.kind != "transformer":
        if kind in ("two-stage", "adversarial", "electric"):
            raise UserError(
                f"objective.kind={kind} trains its generator, but a {generator.kind} generator has "
                "no weights: set generator.kind=transformer."
            )
        if config.generator_first:
            raise UserError(
                f"objective.generator_first trains the generator, but a {generator.kind} generator "
                "has no weights: set generator.kind=transformer, or leave it at 0."
            )
        if tie in ("all", "gdes"):
            raise UserError(
                f"generator.kind={generator.kind} has no weights, so generator.tie={tie} has "
                "nothing to share: leave generator.tie at embeddings."
            )
    if kind in ("replace-mlm", "all-tokens-mlm") and tie == "gdes":
        raise UserError(
            f"objective.kind={kind} predicts tokens with its token embeddings, which generator.tie="
            "gdes splits in two: set generator.tie=embeddings or none."
        )
    if kind == "electric" and tie == "all":
        raise UserError(
            "objective.kind=electric has a generator of two towers, which cannot share the "
            "discriminator's encoder: set generator.tie=embeddings, gdes or none."
        )
    if kind == "adversarial" and tie == "all":
        raise UserError(
            "objective.kind=adversarial has the generator raise the loss that the discriminator "
            "lowers, so they cannot share an encoder: set generator.tie=embeddings, gdes or none."
        )
    if kind == "two-stage":
        check_stages(config, generator)
    if generator.kind == "transformer":
        generator_sizes(model, generator)  # rejects sizes that cannot be built


def check_stages(config: ObjectiveConfig, generator: GeneratorConfig) -> None:
    """Raise a `UserError` if the generator does not suit `two-stage`."""
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
    """Build an objective and initialise its networks."""
    check_together(config, model, generator)
    return KINDS[config.kind](config, model, generator, vocab)
