"""From words on the command line to a validated config, with the origin of every value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from llmtrain.config.files import Layer, read_layers
from llmtrain.config.overrides import parse_command_line
from llmtrain.config.problems import ConfigError, Problem, field_message, unknown_key
from llmtrain.config.schema import SECTIONS, Config
from llmtrain.config.section import RulesBroken, Section


@dataclass(frozen=True)
class Resolved:
    """A config, where each value that was set comes from, and what the user should know about it."""

    config: Config
    origins: dict[str, str]
    notices: list[str]


def load_config(argv: Sequence[str]) -> Resolved:
    """Reads `[FILE.yaml] [--section.field value ...]`. Later wins: default, base files, file, command line.

    Raises:
        ConfigError: everything that is wrong, at once.
    """
    path, overrides = parse_command_line(argv)
    layers = [*(read_layers(path) if path is not None else []), overrides]
    values, origins = _merge(layers)
    config = validate(values, origins)
    notices = [f"{name} changes nothing here: {reason}" for name, reason in config.moot_settings()]
    return Resolved(config, origins, notices)


def _merge(layers: list[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    origins: dict[str, str] = {}
    for layer in layers:
        origins |= layer.origins
    try:
        merged = OmegaConf.merge(*(layer.values for layer in layers))
        values = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or ""
        reason = str(error).splitlines()[0]
        raise ConfigError([Problem(_place(key, origins), key, f"cannot be resolved: {reason}")]) from error
    assert isinstance(values, dict)
    return {str(k): v for k, v in values.items()}, origins


def validate(values: dict[str, Any], origins: dict[str, str]) -> Config:
    """Checks all sections, then the rules between them.

    Raises:
        ConfigError: all problems of all sections.
    """
    problems: list[Problem] = []
    known = [f"{section}.{field}" for section, kind in SECTIONS.items() for field in kind.model_fields]
    built: dict[str, Section] = {}
    for name in values:
        if name not in SECTIONS:
            inside = [f"{name}.{k}" for k in values[name]] if isinstance(values[name], dict) else [name]
            problems += [unknown_key(path, known, _place(path, origins)) for path in inside or [name]]
    for name, kind in SECTIONS.items():
        given = values.get(name)
        if given is not None and not isinstance(given, dict):
            problems.append(Problem(_place(name, origins), name, f"is {given!r}; it takes a mapping of fields"))
            continue
        section, found = _build_section(name, kind, dict(given or {}), origins, known)
        problems += found
        if section is not None:
            built[name] = section
    if not problems:
        config = Config(**built)  # type: ignore[arg-type]
        problems = [Problem(_place(r.fields[0], origins), r.fields[0], r.message) for r in config.rules()]
        if not problems:
            return config
    raise ConfigError(problems)


def _build_section(
    name: str, kind: type[Section], given: dict[str, Any], origins: dict[str, str], known: list[str]
) -> tuple[Section | None, list[Problem]]:
    """Validates one section; fields that fail are set aside, so that one slip does not hide the next."""
    problems: list[Problem] = []
    set_aside: set[str] = set()
    while True:
        try:
            section = kind.model_validate({k: v for k, v in given.items() if k not in set_aside})
        except ValidationError as error:
            before = len(set_aside)
            for detail in error.errors():
                problems += _explain(name, kind, detail, set_aside, origins, known)
            if len(set_aside) > before:
                continue
            return None, problems
        return (section if not problems else None), problems


def _explain(
    name: str, kind: type[Section], detail: Any, set_aside: set[str], origins: dict[str, str], known: list[str]
) -> list[Problem]:
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, RulesBroken):
        rules = [rule for rule in cause.rules if not set_aside & set(rule.fields)]
        return [
            Problem(_place(f"{name}.{r.fields[0]}", origins), f"{name}.{r.fields[0]}", _rule_text(r.message))
            for r in rules
        ]
    field = str(detail["loc"][0])
    path = f"{name}.{field}"
    if field in set_aside:  # a union reports each of its alternatives
        return []
    set_aside.add(field)
    where = _place(path, origins)
    if detail["type"] == "extra_forbidden":
        return [unknown_key(path, known, where)]
    return [Problem(where, path, field_message(detail, kind.model_fields[field].annotation))]


def _rule_text(message: str) -> str:
    return message if message.startswith("is ") else f"cannot be used: {message}"


def _place(path: str, origins: dict[str, str]) -> str | None:
    """Where a path was written, or the field that it lies in; a section says too little about a missing field."""
    parts = path.split(".")
    for end in range(len(parts), min(len(parts), 2) - 1, -1):
        origin = origins.get(".".join(parts[:end]))
        if origin is not None:
            return origin
    return None
