"""Reading YAML files: values by omegaconf, line numbers, `base:` files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from llmtrain.config.problems import ConfigError, Problem


@dataclass
class Layer:
    """One source of values, and where each of its paths was written."""

    values: DictConfig
    origins: dict[str, str] = field(default_factory=dict)


def read_layers(path: Path, seen: tuple[Path, ...] = ()) -> list[Layer]:
    """The file's bases, then the file: a later layer wins over an earlier one.

    Raises:
        ConfigError: a file that is missing, unreadable, no mapping, or its own base.
    """
    resolved = path.resolve()
    if resolved in seen:
        chain = " -> ".join(p.name for p in (*seen, resolved))
        raise ConfigError([Problem(str(path), "base", f"files include each other: {chain}")])
    layer, bases = _read(path)
    layers: list[Layer] = []
    for base in bases:
        layers += read_layers(path.parent / base, (*seen, resolved))
    return [*layers, layer]


def _read(path: Path) -> tuple[Layer, list[str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            [Problem(None, str(path), "does not exist; the first word after train_fsdp2.py is the YAML file")]
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem(None, str(path), f"cannot be read ({error})")]) from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = OmegaConf.create(text) if text.strip() else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        reason = str(getattr(error, "problem", None) or error).strip()
        raise ConfigError([Problem(where, "", f"this is no valid YAML: {reason}")]) from error
    except ValueError as error:
        raise ConfigError([Problem(str(path), "", f"cannot be read: {' '.join(str(error).split())}")]) from error
    if not isinstance(node, yaml.MappingNode) or not isinstance(values, DictConfig):
        raise ConfigError(
            [Problem(str(path), "", "is no mapping of sections (model, data, parallel, training, optimization)")]
        )
    origins: dict[str, str] = {}
    _note_lines(node, "", str(path), origins)
    bases = values.pop("base") if "base" in values else []
    names = [bases] if isinstance(bases, str) else list(bases or [])
    return Layer(values, origins), names


def _note_lines(node: yaml.MappingNode, prefix: str, file: str, origins: dict[str, str]) -> None:
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        origins[path] = f"{file}:{key.start_mark.line + 1}"
        if isinstance(value, yaml.MappingNode):
            _note_lines(value, f"{path}.", file, origins)


def parse_value(text: str) -> Any:
    """A command-line value, read as YAML by the rules of the files: `1e-5` is a number."""
    return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=False)["value"]  # type: ignore[index, call-overload]
