"""Reading YAML files: values by omegaconf, line numbers, `base:` files."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from llmtrain.config.problems import ConfigError, Problem


@dataclass(frozen=True)
class Layer:
    """One source of values, not yet interpolated, and where each of its dotted paths was written."""

    values: dict[str, Any]
    origins: dict[str, str]


def read_layers(path: Path, named_at: str | None = None, including: tuple[Path, ...] = ()) -> list[Layer]:
    """The file's bases, then the file: a later layer wins over an earlier one.

    Args:
        named_at: the line of another file that names this one as its base.
        including: the files on the way here, to find a circle.

    Raises:
        ConfigError: a file that is missing, unreadable, no mapping, or its own base.
    """
    resolved = path.resolve()
    if resolved in including:
        circle = " -> ".join(file.name for file in (*including[including.index(resolved) :], resolved))
        raise ConfigError([Problem(named_at, "base", f"makes files include each other: {circle}")])
    layer, bases, line = _read(path, named_at)
    layers: list[Layer] = []
    for base in bases:
        layers += read_layers(path.parent / base, line, (*including, resolved))
    return [*layers, layer]


def _read(path: Path, named_at: str | None) -> tuple[Layer, list[str], str | None]:
    """The file's own layer, its bases, and where it names them."""
    text = _text_of(path, named_at)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = OmegaConf.create(text) if isinstance(node, yaml.MappingNode) else None
        bases = values.pop("base", None) if isinstance(values, DictConfig) else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError([Problem(where, "", f"this is no valid YAML: {error.problem or error.context}")]) from error
    except yaml.YAMLError as error:
        raise ConfigError([Problem(str(path), "", f"this is no valid YAML: {' '.join(str(error).split())}")]) from error
    except (OmegaConfBaseException, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError([Problem(str(path), "", f"the file cannot be interpreted: {reason}")]) from error
    if not isinstance(node, yaml.MappingNode):
        what = "is empty" if node is None else "holds no mapping"
        advice = "it takes sections (model, data, parallel, training, optimization) with their fields"
        raise ConfigError([Problem(str(path), "", f"the file {what}; {advice}")])
    origins = dict(_lines(node, "", str(path)))
    plain = OmegaConf.to_container(values, resolve=False) if values is not None else {}
    assert isinstance(plain, dict)
    line = origins.get("base")
    # A section without a field says nothing; it must not wipe out what a base says.
    return Layer({str(k): v for k, v in plain.items() if v is not None}, origins), _names(bases, line), line


def _text_of(path: Path, named_at: str | None) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        siblings = [file.name for file in path.parent.glob("*.y*ml")]
        close = difflib.get_close_matches(path.name, siblings, n=1)
        if close:
            hint = f"; did you mean {path.parent / close[0]}?"
        else:
            hint = "" if named_at else "; the first word is the YAML file, then come overrides --section.field value"
        reason = f"does not exist{hint}"
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    except UnicodeDecodeError:
        reason = "cannot be read (it is no UTF-8 text)"
    raise ConfigError([Problem(named_at, f"base: {path}" if named_at else str(path), reason)])


def _names(bases: Any, line: str | None) -> list[str]:
    names = [bases] if isinstance(bases, str) else list(bases) if OmegaConf.is_list(bases) else bases
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError([Problem(line, "base", "takes the path of a file, or a list of them")])
    return names


def _lines(node: yaml.MappingNode, prefix: str, file: str) -> Iterator[tuple[str, str]]:
    """Dotted path and place of every key; a key itself comes after the mappings that `<<` merges under it."""
    for key, value in sorted(node.value, key=lambda pair: pair[0].value != "<<"):
        if key.value == "<<":
            for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(merged, yaml.MappingNode):
                    yield from _lines(merged, prefix, file)
            continue
        path = f"{prefix}{key.value}"
        yield path, f"{file}:{key.start_mark.line + 1}"
        if isinstance(value, yaml.MappingNode):
            yield from _lines(value, f"{path}.", file)
