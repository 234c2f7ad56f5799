"""Values as YAML text and back, by omegaconf's rules: 1e-5 is a number, `${...}` an interpolation."""

from __future__ import annotations

import sys
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

_NULLS = {"null", "Null", "NULL", "~"}


def parse_value(text: str) -> Any:
    """A word of the command line, not empty.

    Patterns such as `*.lm_head` are no YAML (a star names an alias), but in a shell no second pair of quotes is left to
    say so: a word that is no YAML and opens no bracket or quote stands for itself.

    Raises:
        ValueError: an unbalanced bracket or quote, a key or value of a kind that configs do not have.
    """
    try:
        values: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=False)
    except yaml.YAMLError as error:
        if text.lstrip()[:1] in ("[", "{", "'", '"'):
            raise ValueError(getattr(error, "problem", None) or "no YAML") from error
        return text
    except OmegaConfBaseException as error:
        raise ValueError(str(error).splitlines()[0]) from error
    # `#3` and `&3` are a comment and an anchor to YAML, both of nothing.
    return text if values["value"] is None and text.strip() not in _NULLS else values["value"]


def shown(value: Any, limit: int = 80) -> str:
    """A value in a message: as YAML on one line, texts in quotes."""
    text = repr(value) if isinstance(value, str | float) else to_yaml(value, flow=True)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def to_yaml(value: Any, *, flow: bool = False) -> str:
    """YAML that omegaconf reads back as the same value, without a newline at the end; with `flow` on one line."""
    text = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=flow, width=sys.maxsize
    )
    return text.removesuffix("\n").removesuffix("\n...")


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that omegaconf would read as something else; writes each on one line, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    try:
        plain = "\n" not in text and (not text or parse_value(text) == text)
    except ValueError:
        plain = False
    return dumper.represent_scalar("tag:yaml.org,2002:str", text.replace("${", r"\${"), style=None if plain else '"')


_Dumper.add_representer(str, _represent_text)
