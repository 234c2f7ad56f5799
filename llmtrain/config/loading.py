"""From words on the command line to a validated config, with the origin of every value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from llmtrain.config.files import read_layers
from llmtrain.config.overrides import parse_command_line
from llmtrain.config.problems import Problem
from llmtrain.config.schema import SECTIONS, Config
from llmtrain.config.section import default_of
from llmtrain.config.validation import place, validate


@dataclass(frozen=True)
class Resolved:
    """A config, where each of its values comes from, and what the user should know about it.

    `origins` has every field, and every key of a mapping, by its dotted path: `file.yaml:12`, `command line` or
    `default`. `notices` has a line for each setting that changes nothing, or has a price that does not show.
    """

    config: Config
    origins: dict[str, str]
    notices: list[str]


def load_config(argv: Sequence[str]) -> Resolved:
    """Reads `[FILE.yaml] [--section.field value ...]`. Later wins: default, base files, file, command line.

    Raises:
        ConfigError: everything that is wrong, at once.
    """
    path, overrides, problems = parse_command_line(argv)
    layers = [*(read_layers(path) if path is not None else []), overrides]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        values = _laid_over(values, layer.values)
        origins |= layer.origins
    values, unresolved = _interpolated(values, origins)
    config = validate(values, origins, [*problems, *unresolved])
    every = {path: place(path, origins) or "default" for path in _paths(config.to_dict(), "")}
    return Resolved(config, every, list(config.notices()))


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Mappings merge key by key; anything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _laid_over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _interpolated(values: dict[str, Any], origins: dict[str, str]) -> tuple[dict[str, Any], list[Problem]]:
    """Resolves `${...}`, which may name a default, field by field: one failure does not hide the next problem."""
    defaults = {
        name: {key: default_of(field) for key, field in kind.model_fields.items()} for name, kind in SECTIONS.items()
    }
    tree = OmegaConf.create(_laid_over(defaults, values))
    resolved: dict[str, Any] = {}
    problems: list[Problem] = []
    for section, fields in values.items():
        if not isinstance(fields, dict):
            resolved[section] = fields
            continue
        resolved[section] = {}
        for name in fields:
            try:
                value = tree[section][name]
                resolved[section][name] = (
                    OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
                )
            except OmegaConfBaseException as error:
                path, reason = f"{section}.{name}", str(error).splitlines()[0]
                problems.append(Problem(place(path, origins), path, f"cannot be resolved: {reason}"))
    return resolved, problems


def _paths(values: dict[str, Any], prefix: str) -> Iterator[str]:
    """Dotted paths of all fields, and of the keys inside mappings."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if prefix:
            yield path
        if isinstance(value, dict):
            yield from _paths(value, f"{path}.")
