"""Module patterns: `{*}` any number, `{a-b}` a range of numbers, `*` and `?` wildcards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torch import nn

from llmtrain.errors import UserError

_TOKEN = re.compile(r"\{\*\}|\{(\d+)-(\d+)\}|\*|\?")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression over whole module names. `*` also crosses dots, as in `*.q_proj`."""
    out, end = [], 0
    for match in _TOKEN.finditer(pattern):
        out.append(re.escape(pattern[end : match.start()]))
        text = match.group()
        if text == "{*}":
            out.append(r"\d+")
        elif text == "*":
            out.append(".*")
        elif text == "?":
            out.append(".")
        else:
            low, high = int(match.group(1)), int(match.group(2))
            out.append("(?:" + "|".join(map(str, range(low, high + 1))) + ")")
        end = match.end()
    out.append(re.escape(pattern[end:]))
    return re.compile("".join(out))


def match_modules(model: nn.Module, patterns: Sequence[str], field: str) -> list[str]:
    """Names of the modules that match any of `patterns`, in the model's order.

    Raises:
        UserError: a pattern that matches nothing, with `field` named and the names that are there.
    """
    names = [name for name, _ in model.named_modules() if name]
    hit: set[str] = set()
    for pattern in patterns:
        regex = compile_pattern(pattern)
        found = {name for name in names if regex.fullmatch(name)}
        if not found:
            raise UserError(
                f"{field}: the pattern {pattern!r} matches no module of {type(model).__name__}. "
                f"Its modules are {_outline(names)}."
            )
        hit |= found
    return [name for name in names if name in hit]


def _outline(names: Iterable[str]) -> str:
    """Module names with layer numbers folded, down to three levels: what a pattern would be written from."""
    folded = dict.fromkeys(re.sub(r"\.\d+(?=\.|$)", ".{*}", name) for name in names if name.count(".") < 3)
    return ", ".join(folded)
