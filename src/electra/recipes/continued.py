"""The configuration of a run that starts from a trained model, with a recipe or without one."""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from electra.config import override
from electra.errors import UserError
from electra.hub.folders import network_folders, read_config
from electra.models.electra import GeneratorConfig, generator_sizes
from electra.models.encoder import EncoderConfig
from electra.recipes import recipe
from electra.recipes.paper import base, large, small
from electra.train.data import shard_lengths
from electra.train.init_from import InitFromConfig, find_trained_model
from electra.train.run_config import read_run_config
from electra.train.scoring import ScoreOnConfig
from electra.train.settings import PretrainConfig

SCHEDULE = {"optim.lr", "optim.generator_lr", "optim.warmup"}
"""Settings that a YAML file, or a run that was continued before, has decided."""


def continued(
    name: str | None, model: str, data: str, budget: str | None, *, given: Collection[str] = ()
) -> tuple[PretrainConfig, set[str]]:
    """Return a configuration that starts from a model, and the settings in it that are decided.

    It is that of the recipe, if there is one. Else it is the configuration of the run that trained
    the model, or the paper's recipe next to it in size, with the sizes of the model. The sequence
    length is that of the data unless it is in `given`.
    """
    if name is not None:
        return replace(recipe(name), init_from=InitFromConfig(model=model)), set()
    if budget is None:
        raise UserError("Say with --budget how long to train: without a recipe nothing else does.")
    folder = find_trained_model(model)
    if (folder / "config.yaml").is_file():
        config = read_run_config(folder)
        decided = SCHEDULE if config.init_from.model else set()
        config = replace(config, objective=replace(config.objective, generator_first=0.0))
    else:
        config, decided = from_sizes(folder), set()
    # The task of the other run is not this one's.
    config = replace(config, init_from=InitFromConfig(model=model), score_on=ScoreOnConfig())
    if "data.seq_length" not in given:
        found = shard_lengths(data, config.data.lengths[0])
        if len(found) > 1:
            listed = " and ".join(map(str, found))
            raise UserError(
                f"{data} holds rows of {listed} tokens: set data.seq_length to one of them, or to "
                f"a schedule such as data.seq_length={min(found)},{max(found)}@0.9"
            )
        config = override(config, [f"data.seq_length={next(iter(found))}"])
    return config, decided


def from_sizes(folder: Path) -> PretrainConfig:
    """Return the paper's recipe next in size to a model, with the sizes of the model."""
    found = network_folders(folder)
    kept = found.get("discriminator") or found.get("mlm")
    if kept is None:
        raise UserError(
            f"{folder} has only a generator: name a recipe, which says how large the discriminator "
            "will be."
        )
    sizes = read_config(kept)
    recipes = (small(), base(), large())
    config = min(recipes, key=lambda c: abs(c.model.hidden - sizes.hidden))
    model = replace(
        sizes,
        vocab_multiple=config.model.vocab_multiple,
        dropout=config.model.dropout,
        attention_dropout=config.model.attention_dropout,
    )
    objective = config.objective
    if "discriminator" not in found:
        objective = replace(objective, kind="mlm")
    generator = config.generator
    if "generator" in found:
        generator = generator_settings(model, read_config(found["generator"]))
    return replace(config, model=model, generator=generator, objective=objective)


def generator_settings(model: EncoderConfig, sizes: EncoderConfig) -> GeneratorConfig:
    """Return the settings that make a generator of these sizes, as far as there are any."""
    settings = GeneratorConfig(
        width=min(1.0, sizes.hidden / model.hidden), depth=min(1.0, sizes.layers / model.layers)
    )
    made = generator_sizes(model, settings)
    return settings if made.embedding == sizes.embedding else replace(settings, tie="none")


def settings_given(name: str | None, changes: Sequence[str]) -> set[str]:
    """Return the settings that the user has decided: on the command line or in a YAML file."""
    given = {change.partition("=")[0] for change in changes}
    return given | SCHEDULE if name is not None and name.endswith((".yaml", ".yml")) else given


def check_origin(out: Path, model: str | None) -> None:
    """Refuse to resume a run as the continuation of another model than its own."""
    if model is None:
        return
    stored = read_run_config(out).init_from.model
    same = stored == model or (
        bool(stored) and Path(stored).is_relative_to(Path(model).expanduser().resolve())
    )
    if not same:
        raise UserError(
            f"The run {out} was started from {stored or 'random weights'}, not from "
            f"{shlex.quote(model)}: leave out --init-from to resume it."
        )
