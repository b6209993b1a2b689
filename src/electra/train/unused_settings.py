"""Settings of a new run that have no effect: refused if the user named them, else a warning."""

import warnings
from collections.abc import Collection, Iterator

from electra.config import flatten
from electra.errors import UserError
from electra.text.remote import is_url
from electra.train.settings import PretrainConfig

OF_THE_GENERATOR = ("optim.generator_lr", "optim.generator_eps", "optim.clip_by")
OF_SAMPLING = ("objective.temperature", "objective.disallow_correct")
OF_DETECTION = ("objective.discriminator_weight",)
WITHOUT_DETECTION = ("mlm", "replace-mlm", "all-tokens-mlm")


def unused_settings(config: PretrainConfig) -> Iterator[tuple[str, str]]:
    """The settings that differ from their defaults and have no effect, each with the reason."""
    kind, generator = config.objective.kind, config.generator.kind
    reasons: dict[str, str] = {}
    if kind not in ("replace-mlm", "all-tokens-mlm"):
        reasons["objective.model_weight"] = f"objective.kind={kind} has no such loss"
    if kind != "all-tokens-mlm":
        reasons["objective.gate_weight"] = f"objective.kind={kind} has no copy gate"
    if kind == "two-stage":
        reasons["objective.generator_weight"] = "the generator is trained alone"
    if kind in WITHOUT_DETECTION:
        reasons |= dict.fromkeys(OF_DETECTION, f"objective.kind={kind} has no detection loss")
    if generator != "transformer":
        reasons |= dict.fromkeys(OF_THE_GENERATOR, f"a {generator} generator has no weights")
    if config.optim.kind != "muon":
        reasons["optim.muon_lr"] = f"optim.kind={config.optim.kind} has no Muon"
    if kind == "mlm":
        alone = "objective.kind=mlm has no generator"
        reasons |= dict.fromkeys((*OF_THE_GENERATOR, *OF_SAMPLING), alone)
        reasons["objective.generator_weight"] = alone
    if not (config.model.dropout or config.model.attention_dropout):
        reasons["train.dropout_start"] = "the model has no dropout"
    if is_url(config.data.folder):
        reasons["data.verify"] = "shards of an object store are verified as they are downloaded"
    else:
        local = "the shards are on the local disk"
        reasons |= dict.fromkeys(("data.cache_dir", "data.cache_gb"), local)
    default = dict(flatten(PretrainConfig()))
    for key, value in flatten(config):
        if key in reasons and value != default[key]:
            yield f"{key}={value}", reasons[key]


def check_unused(config: PretrainConfig, given: Collection[str]) -> None:
    """Refuse settings without effect that are `given`; warn about those of a recipe."""
    for setting, reason in unused_settings(config):
        if setting.partition("=")[0] in given:
            raise UserError(f"{setting} has no effect, because {reason}: leave it out.")
        warnings.warn(f"{setting} has no effect, because {reason}.", stacklevel=3)
