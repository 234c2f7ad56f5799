"""The command line: an optional YAML file, then `--section.field value`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from llmtrain.config.files import Layer, parse_value
from llmtrain.config.problems import ConfigError, Problem, unknown_key
from llmtrain.config.schema import SECTIONS
from llmtrain.config.section import union_members

COMMAND_LINE = "command line"


def parse_command_line(argv: Sequence[str]) -> tuple[Path | None, Layer]:
    """Splits the words into the config file and a layer of overrides.

    Raises:
        ConfigError: stray words, a flag without a value, the same flag twice; all of them at once.
    """
    words = list(argv)
    path = Path(words.pop(0)) if words and not words[0].startswith("--") and "=" not in words[0] else None
    problems: list[Problem] = []
    given: dict[str, Any] = {}
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            name = word.partition("=")[0]
            hint = f"; write --{word}" if "." in name else "; overrides are written --section.field value"
            problems.append(Problem(COMMAND_LINE, repr(word), f"is out of place{hint}"))
            continue
        name, equals, value = word[2:].partition("=")
        values = [value] if equals else _following(words)
        problem, parsed = _value_of(name, values)
        if problem is None and name in given and given[name] != parsed:
            problem = Problem(COMMAND_LINE, f"--{name}", f"is given twice, as {given[name]!r} and {parsed!r}")
        if problem is not None:
            problems.append(problem)
        else:
            given[name] = parsed
    if problems:
        raise ConfigError(problems)
    layer = Layer(OmegaConf.create({}))
    for name, parsed in given.items():
        OmegaConf.update(layer.values, name, parsed, force_add=True)
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            layer.origins[".".join(parts[:end])] = f"{COMMAND_LINE} --{name}"
    return path, layer


def _following(words: list[str]) -> list[str]:
    values = []
    while words and not words[0].startswith("--"):
        values.append(words.pop(0))
    return values


def _value_of(name: str, values: list[str]) -> tuple[Problem | None, Any]:
    flag = f"--{name}"
    section, _, rest = name.partition(".")
    field = rest.partition(".")[0]
    known = SECTIONS[section].model_fields.get(field) if section in SECTIONS else None
    if known is None:
        names = [f"{s}.{f}" for s, kind in SECTIONS.items() for f in kind.model_fields]
        return unknown_key(name, names, f"{COMMAND_LINE} {flag}"), None
    if not values:
        if bool in union_members(known.annotation):
            return None, True
        return Problem(COMMAND_LINE, flag, "needs a value"), None
    try:
        parsed = [parse_value(value) for value in values]
    except (yaml.YAMLError, ValueError) as error:
        return Problem(COMMAND_LINE, flag, f"has a value that is no valid YAML ({' '.join(str(error).split())})"), None
    return None, parsed[0] if len(parsed) == 1 else parsed
