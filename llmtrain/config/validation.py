"""Checks nested values against the schema and finds everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from llmtrain.config.problems import ConfigError, Problem, field_message, unknown_key
from llmtrain.config.schema import FIELDS, SECTIONS, Config, shown_unless_secret
from llmtrain.config.section import Section


def validate(values: dict[str, Any], origins: dict[str, str], earlier: Sequence[Problem] = ()) -> Config:
    """Checks every field, then the rules between those that are sound.

    Args:
        origins: where a dotted path was written, for the messages.
        earlier: problems that reading the values had; their paths are not judged again.

    Raises:
        ConfigError: all problems.
    """
    problems = list(earlier)
    for name, given in values.items():
        if name not in SECTIONS:
            inside = [f"{name}.{key}" for key in given] if isinstance(given, dict) else []
            problems += [unknown_key(path, FIELDS, place(path, origins)) for path in inside or [str(name)]]
    sections: dict[str, Any] = {}
    for name, kind in SECTIONS.items():
        given = values.get(name)
        if given is not None and not isinstance(given, dict):
            problems.append(Problem(place(name, origins), name, f"is {given!r}; it takes a mapping of fields"))
            given = None
        sections[name], found = _build(name, kind, given or {}, origins)
        problems += found
    config = Config(**sections)
    judged = {problem.path for problem in problems}
    for rule in config.broken_rules():
        # A rule on a field that could not be read would judge its default in place of what was meant.
        if not any(field in judged or field.partition(".")[0] in judged for field in rule.fields):
            where = next((where for where in (place(field, origins) for field in rule.fields) if where), None)
            problems.append(Problem(where, rule.fields[0], rule.message))
    if problems:
        raise ConfigError(problems)
    return config


def _build(
    name: str, kind: type[Section], given: dict[Any, Any], origins: dict[str, str]
) -> tuple[Section, list[Problem]]:
    """The section from the fields that can be read, and the problems of the others."""
    given = {str(key): value for key, value in given.items()}
    try:
        return kind.model_validate(given), []
    except ValidationError as error:
        details = {str(detail["loc"][0]): detail for detail in reversed(error.errors())}
    problems = []
    for field, detail in reversed(details.items()):
        path = f"{name}.{field}"
        where = place(path, origins)
        if field in kind.model_fields:
            message = field_message(
                detail, shown_unless_secret(path, given[field]), kind.model_fields[field].annotation
            )
            problems.append(Problem(where, path, message))
        else:
            problems.append(unknown_key(path, FIELDS, where))
    return kind.model_validate({key: value for key, value in given.items() if key not in details}), problems


def place(path: str, origins: dict[str, str]) -> str | None:
    """Where a path was written, or the field that it lies in, or a part of it.

    The line of a whole section would say too little.
    """
    parts = path.split(".")
    around = (".".join(parts[:end]) for end in range(len(parts), min(len(parts), 2) - 1, -1))
    inside = (other for other in origins if len(parts) > 1 and other.startswith(f"{path}."))
    return next((origins[other] for other in (*around, *inside) if other in origins), None)
