"""What is wrong with a config, all of it at once, in words of the config."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic_core import ErrorDetails

from llmtrain.config.section import union_members
from llmtrain.errors import UserError

# Names that other trainers give to what is a field here; no likeness of spelling leads from one to the other.
_SYNONYMS = {
    "learning_rate": "training.lr",
    "batch_size": "training.per_device_train_batch_size",
    "micro_batch_size": "training.per_device_train_batch_size",
    "epochs": "training.num_train_epochs",
    "num_epochs": "training.num_train_epochs",
    "train_iters": "training.max_steps",
    "clip_grad": "training.max_grad_norm",
    "seq_length": "data.cutoff_len",
    "max_length": "data.cutoff_len",
    "max_seq_length": "data.cutoff_len",
    "gradient_checkpointing": "parallel.recompute",
}
_TYPE_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
_ITEM_WORDS: dict[Any, str] = {
    (int,): "whole numbers",
    (str,): "texts",
    (str | dict[str, Any],): "texts or mappings",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where it stands (file:line or the command line), its dotted path, and what to do."""

    where: str | None
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.path} {self.message}" if self.path else f"{place}{self.message}"


class ConfigError(UserError):
    """A config that cannot be used; `problems` lists every reason."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        count = len(self.problems)
        head = "the config cannot be used" + (f"; {count} things are wrong:" if count > 1 else ":")
        super().__init__("\n".join([head, *(f"  - {problem}" for problem in self.problems)]))


def nearest(path: str, known: Iterable[str]) -> str | None:
    """The known dotted name that was probably meant: the same word in any section, else a similar one, nearby first."""
    section, _, word = path.rpartition(".")
    word = word.replace("-", "_").lower()
    by_word = {synonym: [name] for synonym, name in _SYNONYMS.items()}
    for name in known:
        by_word.setdefault(name.rpartition(".")[2], []).append(name)
    inside = [w for w, names in by_word.items() if any(n.startswith(f"{section}.") for n in names)]
    for words in ([w for w in by_word if w == word], inside, list(by_word)):
        close = difflib.get_close_matches(word, words, n=1, cutoff=0.75)
        if close:
            return max(by_word[close[0]], key=lambda name: difflib.SequenceMatcher(None, name, path).ratio())
    return None


def unknown_key(path: str, known: Iterable[str], where: str | None) -> Problem:
    guess = nearest(path, known)
    return Problem(
        where, path, f"is no known field; {f'did you mean {guess}?' if guess else '--help lists all fields'}"
    )


def describe_type(annotation: Any) -> str:
    """A field's type in a reader's words: `a whole number`, `one of a, b`."""
    words = []
    for member in union_members(annotation):
        choices = [str(choice) for choice in get_args(member)]
        if get_origin(member) is Literal:
            words.append(f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0])
        elif get_origin(member) is list:
            words.append(f"a list of {_ITEM_WORDS[get_args(member)]}")
        elif get_origin(member) is dict:
            words.append("a mapping")
        else:
            words.append(_TYPE_WORDS[member])
    return " or ".join(words)


def field_message(error: ErrorDetails, given: str, annotation: Any) -> str:
    """What one failed check says about `given`, from pydantic's error code; its own wording is for programmers."""
    context, kind = error.get("ctx", {}), error["type"]
    if kind in _BOUNDS:
        word, key = _BOUNDS[kind]
        return f"is {given}; it must be {word} {context[key]:g}"
    if kind == "finite_number":
        return f"is {given}; it must be a finite number"
    reason = f" ({context['error']})" if kind == "value_error" else ""
    return f"is {given}; it takes {describe_type(annotation)}{reason}"
