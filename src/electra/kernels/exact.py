"""Whether modules are exactly those that a fused form stands for.

A fused form computes what the classes of `electra.models` describe, not what a subclass, a hook or
a changed setting makes of them. Each check returns None, or the reason in a few words.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from electra.models.electra import Discriminator, Generator
from electra.models.encoder import Attention, Encoder, Layer

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
M = TypeVar("M", bound=nn.Module)
verified: WeakKeyDictionary[nn.Module, tuple[int, ...]] = WeakKeyDictionary()
"""The structure of each module when it was last compared with its reference."""


def encoder_mismatch(encoder: Encoder) -> str | None:
    """Why the fused encoder does not match this one."""
    if type(encoder) is not Encoder:
        return f"it is {_name(encoder)}, not Encoder"
    dropout, attention_dropout = encoder.dropout_rates
    config = replace(encoder.config, dropout=dropout, attention_dropout=attention_dropout)
    with torch.device("meta"):
        reference = Encoder(config)
    if reason := module_mismatch(encoder, reference):
        return reason
    # A new setting may select other layers, which the reference then has, too.
    for number, layer in enumerate(encoder.layers):
        if type(layer) is not Layer:
            return f"layer {number} is {_name(layer)}, not Layer"
    return None


def generator_head_mismatch(generator: Generator) -> str | None:
    """Why the fused head does not match that of this generator."""
    if type(generator) is not Generator:
        return f"it is {_name(generator)}, not Generator"
    with torch.device("meta"):
        reference = Generator(Encoder(generator.encoder.config))
    return module_mismatch(generator, reference, skip="encoder")


def discriminator_head_mismatch(discriminator: Discriminator) -> str | None:
    """Why the fused head does not match that of this discriminator."""
    if type(discriminator) is not Discriminator:
        return f"it is {_name(discriminator)}, not Discriminator"
    with torch.device("meta"):
        reference = Discriminator(Encoder(discriminator.encoder.config))
    return module_mismatch(discriminator, reference, skip="encoder")


def module_mismatch(module: nn.Module, reference: nn.Module, skip: str = "") -> str | None:
    """The first difference in types, names, shapes, settings, hooks or methods, if there is one.

    The child called `skip` is left out.
    """
    found, wanted = _modules(module, skip), _modules(reference, skip)
    for path, part in found.items():
        if path not in wanted:
            return f"{_path(path)} is not part of {_name(reference)}"
        if type(part) is not type(wanted[path]):
            return f"{_path(path)} is {_name(part)}, not {_name(wanted[path])}"
        if reason := _part_mismatch(part, wanted[path], path):
            return reason
    missing = [path for path in wanted if path not in found]
    return f"{_path(missing[0])} is missing" if missing else None


def encoder_state_mismatch(encoder: Encoder) -> str | None:
    """What was changed since the fused form was put in place: modules, methods, hooks, modes,
    dropout rates or eps.

    Cheap enough for every call, unlike `encoder_mismatch`, which runs when modules were replaced.
    """
    if reason := changed_mismatch(encoder, encoder_mismatch):
        return reason
    (dropout, attention_dropout), eps = encoder.dropout_rates, encoder.embeddings.norm.eps
    for path, part in encoder.named_modules():
        if path and has_hooks(part):  # those of the encoder itself run
            return f"{_path(path)} has hooks"
        if part.training != encoder.training:
            mode = "training" if part.training else "evaluation"
            return f"{_path(path)} is in {mode} mode, unlike the encoder"
        if isinstance(part, nn.Dropout) and part.p != dropout:
            return f"{_path(path)} has p={part.p}, not {dropout}"
        if isinstance(part, Attention) and part.dropout != attention_dropout:
            return f"{_path(path)} has dropout={part.dropout}, not {attention_dropout}"
        if isinstance(part, nn.LayerNorm) and part.eps != eps:  # the kernels have one for all
            return f"{_path(path)} has eps={part.eps}, not {eps}"
    return None


def changed_mismatch(module: M, mismatch: Callable[[M], str | None], skip: str = "") -> str | None:
    """What `mismatch` says of a module, which is asked again only when the module has changed."""
    current = structure(module, skip)
    if verified.get(module) == current:
        return None
    reason = mismatch(module)
    if reason is None:
        verified[module] = current
    return reason


def structure(module: nn.Module, skip: str = "") -> tuple[int, ...]:
    """Numbers that change when a part, a parameter, a method or a setting is replaced."""
    numbers: list[int] = []
    for part in _modules(module, skip).values():
        settings = hash(tuple(_settings(part).items()))
        numbers += [id(part), id(type(part)), len(vars(part)), settings]
        numbers += map(id, part._parameters.values())
    return tuple(numbers)


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks are registered, which a fused form does not call."""
    return any(getattr(module, name) for name in HOOKS)


def _part_mismatch(part: nn.Module, reference: nn.Module, path: str) -> str | None:
    where = _path(path)
    if has_hooks(part):
        return f"{where} has hooks"
    own = [n for n in vars(part) if callable(getattr(type(part), n, None)) and not _fused(part, n)]
    if own:
        return f"{where} overrides {own[0]}"
    for kind in ("parameters", "buffers"):
        tensors, wanted = (
            dict(getattr(m, f"named_{kind}")(recurse=False)) for m in (part, reference)
        )
        if extra := [n for n in tensors if n not in wanted]:
            return f"{where} has an extra {kind.removesuffix('s')} {extra[0]}"
        for name, tensor in wanted.items():
            if name not in tensors:
                return f"{where} has no {name}"
            if (tensors[name].shape, tensors[name].dtype) != (tensor.shape, tensor.dtype):
                shape = tuple(tensors[name].shape)
                return (
                    f"{where}.{name} is {shape} in {tensors[name].dtype}, not {tuple(tensor.shape)}"
                )
    found, wanted_settings = _settings(part), _settings(reference)
    for name, value in found.items():
        if name in wanted_settings and value != wanted_settings[name]:
            return f"{where} has {name}={value}, not {wanted_settings[name]}"
    return None


def _settings(module: nn.Module) -> dict[str, object]:
    """Attributes that are numbers, switches or names."""
    plain = (bool, int, float, str, tuple, type(None))
    return {
        name: value
        for name, value in vars(module).items()
        if name[0] != "_" and name != "training" and isinstance(value, plain)
    }


def _modules(module: nn.Module, skip: str) -> dict[str, nn.Module]:
    """By path; a module that is there twice is listed twice."""

    def walk() -> Iterator[tuple[str, nn.Module]]:
        for path, part in module.named_modules(remove_duplicate=False):
            if not skip or path.split(".")[0] != skip:
                yield path, part

    return dict(walk())


def _fused(part: nn.Module, name: str) -> bool:
    """Whether this attribute is a fused form that was put there before."""
    function = getattr(vars(part)[name], "func", None)
    return getattr(function, "__module__", "") == "electra.kernels.modules"


def _name(module: nn.Module) -> str:
    return type(module).__name__


def _path(path: str) -> str:
    """`layers.3.qkv` as `layer 3 qkv`."""
    words = path.split(".")
    if words[0] == "layers" and len(words) > 1:
        words[:2] = [f"layer {words[1]}"]
    return " ".join(words) or "it"
