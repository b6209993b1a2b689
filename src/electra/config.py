"""Strict dataclasses <-> YAML <-> `key=value`; an unknown key is an error with the nearest name.

A configuration is a frozen dataclass beside the code that it configures. The string under a field
is its help: `electra recipes NAME` prints it, and `config.yaml` has it as a comment.

A renamed setting is still read under its old name, with a warning: a dataclass lists such names
in `RENAMED_KEYS` and `RENAMED_VALUES`. `ALIASES` lists names that other libraries use; they
are not accepted, but the error names the right one.
"""

import ast
import dataclasses
import inspect
import math
import textwrap
import types
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import yaml

from electra.errors import UserError, find_nearest
from electra.json_types import MAX_NUMBER

C = TypeVar("C")


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain values for YAML or JSON."""
    return {
        f.name: to_dict(v) if dataclasses.is_dataclass(v := getattr(config, f.name)) else _plain(v)
        for f in dataclasses.fields(config)
    }


def from_dict(kind: type[C], values: Mapping[str, Any]) -> C:
    """Build a configuration; unknown keys and wrong types are errors."""
    return _build(kind, update_renamed(kind, values), "", getattr(kind, "ALIASES", {}))


def _build(kind: type[C], values: Mapping[str, Any], path: str, aliases: Mapping[str, str]) -> C:
    hints = typing.get_type_hints(kind)
    types = {f.name: hints[f.name] for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in types:
            raise _unknown(f"{path}{key}", [f"{path}{name}" for name in types], aliases)
    built = {}
    for key, value in values.items():
        if dataclasses.is_dataclass(types[key]):
            if not isinstance(value, Mapping):
                raise UserError(f"'{path}{key}' is a group of settings, not one value.")
            built[key] = _build(types[key], value, f"{path}{key}.", aliases)
        elif typing.get_args(types[key])[1:] == (...,):  # a list of any length
            built[key] = _build_list(typing.get_args(types[key])[0], value, f"{path}{key}", aliases)
        else:
            built[key] = _convert(value, types[key], f"{path}{key}")
    return kind(**built)


def _build_list(kind: Any, values: Any, key: str, aliases: Mapping[str, str]) -> tuple[Any, ...]:
    """The entries of a list: groups of settings, or values of one type."""
    if not isinstance(values, list):
        raise UserError(f"'{key}' is a list, not '{values}'.")
    if not dataclasses.is_dataclass(kind):
        return tuple(_convert(value, kind, key) for value in values)
    for value in values:
        if not isinstance(value, Mapping):
            raise UserError(f"'{key}' is a list of groups of settings, not of '{value}'.")
    return tuple(
        _build(kind, value, f"{key}.{number}.", aliases)  # type: ignore[arg-type]
        for number, value in enumerate(values, 1)
    )


def override(config: C, assignments: Sequence[str]) -> C:
    """The configuration with `group.key=value` assignments applied; later ones win."""
    values, known = to_dict(config), dict(flatten(config))
    for assignment in assignments:
        key, sign, text = assignment.partition("=")
        if not sign:
            raise UserError(f"'{assignment}' is not a setting: write it as key=value.")
        ((key, text),) = update_renamed_flat(type(config), {key: text}).items()
        if key not in known:
            raise _unknown(key, list(known), getattr(type(config), "ALIASES", {}))
        *groups, last = key.split(".")
        target = values
        for group in groups:
            target = target[group]
        target[last] = text
    return from_dict(type(config), values)


def update_renamed(kind: type, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Nested settings with old names and values replaced by the current ones."""
    if not hasattr(kind, "RENAMED_KEYS"):
        return values
    updated: dict[str, Any] = {}
    for path, value in update_renamed_flat(kind, dict(_leaves(values))).items():
        *groups, last = path.split(".")
        target = updated
        for group in groups:
            target = target.setdefault(group, {})
        target[last] = value
    return updated


def update_renamed_flat(kind: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by `group.key` with current names and values; warns about old names."""
    keys: Mapping[str, str] = getattr(kind, "RENAMED_KEYS", {})
    renamed = {old: keys[old] for old in settings if old in keys}
    if renamed:
        first = [f"'{old}' is now '{new}'" for old, new in renamed.items()][:2]
        more = f" and {len(renamed) - 2} more" if len(renamed) > 2 else ""
        text = f"old names of settings are still read: {', '.join(first)}{more}."
        warnings.warn(text, FutureWarning, stacklevel=2)
    both = {old for old, new in renamed.items() if new in settings}
    if both:
        old = min(both)
        raise UserError(f"'{old}' and '{keys[old]}' are the same setting: leave out '{old}'.")
    values: Mapping[str, Mapping[str, Any]] = getattr(kind, "RENAMED_VALUES", {})
    updated = {keys.get(key, key): value for key, value in settings.items()}
    for key, changed in values.items():
        if str(updated.get(key)).lower() in changed:
            updated[key] = changed[str(updated[key]).lower()]
    return updated


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def flatten(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each setting as ('group.key', value)."""
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            yield from flatten(value, f"{path}{f.name}.")
        else:
            yield f"{path}{f.name}", value


def to_yaml(config: Any, indent: int = 0) -> str:
    """YAML with the help of each field as a comment."""
    helps, lines, space = field_helps(type(config)), [], "  " * indent
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if f.name in helps:
            wrapped = textwrap.wrap(helps[f.name], 96 - len(space), break_on_hyphens=False)
            lines += [f"{space}# {line}" for line in wrapped]
        if dataclasses.is_dataclass(value):
            lines += [f"{space}{f.name}:", to_yaml(value, indent + 1).rstrip("\n")]
        else:
            # Double quotes write a line break as \n, so that each value has one line.
            style = '"' if isinstance(value, str) and "\n" in value else None
            text = yaml.safe_dump(
                _plain(value), default_flow_style=True, default_style=style, width=math.inf
            )
            lines.append(f"{space}{f.name}: {text.splitlines()[0]}")
    return "\n".join(lines) + "\n"


def from_yaml(kind: type[C], text: str | bytes, source: str) -> C:
    """Read a configuration from YAML; `source` is its name in error messages."""
    values = load_yaml(text, source)
    if not isinstance(values, Mapping):
        raise UserError(f"{source} holds no settings: it must map names to values.")
    return from_dict(kind, values)


def load_yaml(text: str | bytes, source: str) -> Any:
    """Parse YAML that others may have written: plain values only, without aliases."""
    try:
        return PlainLoader(text).get_single_data()
    except RecursionError:
        raise UserError(f"{source} is not valid YAML: it is nested too deeply.") from None
    # A ValueError: a date or a number that Python does not have
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from None


class PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader without what a few bytes can blow up: aliases and huge numbers."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse an alias, by which ten lines can stand for a billion values."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.YAMLError(f"an alias in line {mark.line + 1}; write the value instead")
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Refuse a number that may be too long to print."""
        value: int = super().construct_yaml_int(node)
        if abs(value) >= MAX_NUMBER:
            raise yaml.YAMLError(f"a number in line {node.start_mark.line + 1} is too large")
        return value


PlainLoader.add_constructor("tag:yaml.org,2002:int", PlainLoader.construct_yaml_int)


def field_helps(kind: type) -> dict[str, str]:
    """The string literal under each field of a dataclass, joined into one line."""
    helps: dict[str, str] = {}
    for base in kind.__mro__[1:]:
        if dataclasses.is_dataclass(base):
            helps |= field_helps(base)
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    for field, below in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            helps[field.target.id] = " ".join(str(below.value.value).split())
    return helps


def _unknown(key: str, known: list[str], aliases: Mapping[str, str]) -> UserError:
    """Name the nearest setting; else those of the same section, or the sections."""
    close = aliases.get(key.rpartition(".")[2]) or find_nearest(key, known)
    sections = sorted({name.partition(".")[0] for name in known if "." in name})
    inside = [name for name in known if name.startswith(f"{key.partition('.')[0]}.")]
    if close:
        hint = f"did you mean '{close}'?"
    elif sections and not inside:
        hint = f"the sections are {', '.join(sections)}; 'electra recipes NAME' lists all settings."
    else:
        hint = f"there are: {', '.join(sorted(inside or known))}."
    return UserError(f"There is no setting '{key}': {hint}")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _convert(value: Any, kind: Any, key: str) -> Any:
    """Convert a value from YAML or the command line to the declared type."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise UserError(f"'{key}' must be one of {', '.join(choices)}, not '{value}'.")
        return value
    if origin is tuple:
        kinds = typing.get_args(kind)
        parts = value.strip("[]()").split(",") if isinstance(value, str) else value
        if not isinstance(parts, list):
            raise UserError(f"'{key}' takes {len(kinds)} values, not '{value}'.")
        if len(parts) != len(kinds):
            raise UserError(f"'{key}' takes {len(kinds)} values, not {len(parts)}.")
        return tuple(_convert(part, k, key) for part, k in zip(parts, kinds, strict=True))
    if isinstance(kind, types.UnionType):  # int | str: a number, or a schedule as text
        try:
            return _convert(value, int, key)
        except UserError:
            if isinstance(value, str):
                return value
            raise
    try:
        if kind is bool:
            return {"true": True, "false": False}[str(value).lower()]
        if kind is int:
            number = float(value)  # so that 1e6 is an integer too
            if not number.is_integer() or isinstance(value, bool):
                raise ValueError
            return int(value) if str(value).lstrip("+-").isdigit() else int(number)
        if kind is float:
            number = float(value)
            if not math.isfinite(number):
                raise ValueError
            return number
    except (KeyError, ValueError, TypeError, OverflowError):
        names = {bool: "true or false", int: "a whole number", float: "a number"}
        raise UserError(f"'{key}' takes {names[kind]}, not '{value}'.") from None
    assert kind is str, f"{key}: no conversion for {kind}"
    return str(value)
