"""The least that a config needs, and short ways to load one and to read its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmtrain.config import Config, ConfigError, Resolved, load_config

NEEDED = ["--model.model_name_or_path", "m", "--data.dataset", "d", "--training.output_dir", "o"]


def load(*words: str) -> Resolved:
    return load_config([*words, *NEEDED])


def problems(*words: str) -> list[str]:
    """What is said about a config that has what is needed and these words."""
    return problems_of([*words, *NEEDED])


def problems_of(argv: list[str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(argv)
    return [str(problem) for problem in caught.value.problems]


def minimal(**sections: dict[str, Any]) -> dict[str, Any]:
    """A nested dict with what is needed, and `sections` laid over it."""
    needed = {"model": {"model_name_or_path": "m"}, "data": {"dataset": "d"}, "training": {"output_dir": "o"}}
    return {name: {**needed.get(name, {}), **sections.get(name, {})} for name in {**needed, **sections}}


def dict_problems(**sections: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Config.from_dict(minimal(**sections))
    return [str(problem) for problem in caught.value.problems]


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)
