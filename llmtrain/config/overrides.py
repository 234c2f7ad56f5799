"""The command line: an optional YAML file, then `--section.field value`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_origin

from llmtrain.config.files import Layer
from llmtrain.config.problems import Problem
from llmtrain.config.schema import FIELDS, shown_unless_secret
from llmtrain.config.section import union_members
from llmtrain.config.yaml_values import parse_value, shown

COMMAND_LINE = "command line"
Keys = tuple[Any, ...]
_NUMBER = re.compile(r"-[.\d]")


def parse_command_line(argv: Sequence[str]) -> tuple[Path | None, Layer, list[Problem]]:
    """Splits the words into the config file, a layer of overrides, and what is wrong with the words.

    Whether the fields exist and the values fit is left to validation.
    """
    words = list(argv)
    file = Path(words.pop(0)) if words and _is_file(words[0]) else None
    problems: list[Problem] = []
    given: dict[Keys, Any] = {}
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            problems.append(Problem(COMMAND_LINE, shown(word), f"is out of place; {_right_form(word)}"))
            continue
        name, equals, value = word[2:].partition("=")
        parsed = _parse(name, [value] if equals else _following(words))
        if isinstance(parsed, Problem):
            problems.append(parsed)
            continue
        for path, item in _leaves(tuple(name.split(".")), parsed):
            problem = _clash(path, item, given)
            if problem is None:
                given[path] = item
            else:
                problems.append(problem)
    return file, _layer(given), problems


def _clash(path: Keys, value: Any, given: dict[Keys, Any]) -> Problem | None:
    name = ".".join(map(str, path))
    if path in given and given[path] != value:
        both = " and ".join(shown_unless_secret(name, item) for item in (given[path], value))
        return Problem(COMMAND_LINE, name, f"is given twice, as {both}")
    for other in given:
        shorter, longer = sorted((path, other), key=len)
        if shorter != longer and longer[: len(shorter)] == shorter:
            return Problem(COMMAND_LINE, ".".join(map(str, shorter)), "is given as a whole and in part; choose one")
    return None


def _is_file(word: str) -> bool:
    return not word.startswith("-") and (word.endswith((".yaml", ".yml")) or "=" not in word)


def _right_form(word: str) -> str:
    if word.endswith((".yaml", ".yml")):
        return "one YAML file is read, and comes first; it can name others under base:"
    form = word.lstrip("-") if "." in word.partition("=")[0] else "section.field value"
    return f"write --{form}"


def _following(words: list[str]) -> list[str]:
    """Takes the values of a flag: the words up to the next flag; what starts with a dash is one only as a number."""
    values = []
    while words and (not words[0].startswith("-") or _NUMBER.match(words[0])):
        values.append(words.pop(0))
    return values


def _parse(name: str, values: list[str]) -> Any:
    """The value of one flag, or the Problem with it."""
    field = FIELDS.get(".".join(name.split(".")[:2]))
    members = union_members(field.annotation) if field else ()
    if not values and (field is None or bool in members):
        return True
    if not values or not all(values):
        return Problem(COMMAND_LINE, name, "needs a value")
    if len(values) > 1 and field and not any(get_origin(member) is list for member in members):
        return Problem(COMMAND_LINE, name, f"takes one value, not {' '.join(values)}")
    try:
        parsed = [parse_value(value) for value in values]
    except ValueError as error:
        brackets = any(value.startswith("[") and set("*{") & set(value) for value in values)
        hint = "; a pattern needs quotes inside brackets, and none outside: a b c" if brackets else ""
        return Problem(COMMAND_LINE, name, f"has a value that cannot be read: {error}{hint}")
    return parsed if len(parsed) > 1 else parsed[0]


def _leaves(path: Keys, value: Any) -> Iterator[tuple[Keys, Any]]:
    """What a flag sets, key by key of its mappings."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves((*path, key), item)
    else:
        yield path, value


def _layer(given: dict[Keys, Any]) -> Layer:
    values: dict[Any, Any] = {}
    for (*parents, last), value in given.items():
        inner = values
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return Layer(values, {".".join(map(str, path)): COMMAND_LINE for path in given})
