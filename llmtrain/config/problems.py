"""What is wrong with a config, all of it at once, in words of the config."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic_core import ErrorDetails

from llmtrain.config.section import union_members
from llmtrain.errors import UserError


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where it stands (file:line or the flag), its dotted path, and what to do."""

    where: str | None
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.path} {self.message}".strip()


class ConfigError(UserError):
    """A config that cannot be used; `problems` lists every reason."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        count = len(self.problems)
        head = "the config cannot be used" + (f"; {count} things are wrong:" if count > 1 else ":")
        super().__init__("\n".join([head, *(f"  - {problem}" for problem in self.problems)]))


def nearest(path: str, known: Iterable[str]) -> str | None:
    """The known dotted name that was probably meant: by its last word first, then by the whole."""
    names = list(known)
    leaf = path.rpartition(".")[2].replace("-", "_")
    section = path.partition(".")[0]
    by_leaf: dict[str, list[str]] = {}
    for name in names:
        by_leaf.setdefault(name.rpartition(".")[2], []).append(name)
    close = difflib.get_close_matches(leaf, by_leaf, n=3, cutoff=0.75)
    candidates = [name for word in close[:1] for name in by_leaf[word]]
    for word in close:
        same_section = [name for name in by_leaf[word] if name.startswith(f"{section}.")]
        if same_section and word == close[0]:
            return same_section[0]
    if candidates:
        return max(candidates, key=lambda n: difflib.SequenceMatcher(None, n, path).ratio())
    whole = difflib.get_close_matches(path, names, n=1, cutoff=0.75)
    return whole[0] if whole else None


def unknown_key(path: str, known: Iterable[str], where: str | None) -> Problem:
    guess = nearest(path, known)
    hint = f"; did you mean {guess}?" if guess else "; --help lists all fields"
    return Problem(where, path, f"is no known field{hint}")


def describe_type(annotation: Any) -> str:
    """A field's type in a reader's words: `a whole number`, `one of a, b`."""
    words = []
    for member in union_members(annotation):
        if member is type(None):
            words.append("null")
        elif get_origin(member) is Literal:
            words.append(
                "one of " + ", ".join(map(str, get_args(member)))
                if len(get_args(member)) > 1
                else str(get_args(member)[0])
            )
        elif get_origin(member) is list:
            item = {int: "whole numbers", str: "texts"}.get(get_args(member)[0], "values")
            words.append(f"a list of {item}")
        elif get_origin(member) is dict:
            words.append("a mapping")
        else:
            words.append(
                {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(
                    member, str(member)
                )
            )
    return " or ".join(words)


def field_message(error: ErrorDetails, annotation: Any) -> str:
    """What one failed check says, from pydantic's error code; its own wording is for programmers."""
    given, context, kind = error.get("input"), error.get("ctx", {}), error["type"]
    bounds = {
        "greater_than_equal": ("at least", "ge"),
        "greater_than": ("more than", "gt"),
        "less_than_equal": ("at most", "le"),
        "less_than": ("less than", "lt"),
    }
    if kind in bounds:
        word, key = bounds[kind]
        return f"is {given!r}; it must be {word} {context[key]:g}"
    if kind == "value_error":
        return f"is {given!r}: {context['error']}"
    if given is None:
        return f"is null; it takes {describe_type(annotation)}"
    return f"is {given!r}; it takes {describe_type(annotation)}"
