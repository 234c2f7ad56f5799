"""One process group of one rank for tests that need no more, and the small files they train on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from llmtrain.config import Config, Resolved
from llmtrain.runtime.world import World, close_world, open_world
from llmtrain.training.loop import Ending
from llmtrain.training.train import train
from tests.tiny import make_chats, make_texts, make_tokenizer


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests, and the processes that they start, never see the user's cache of tokens."""
    os.environ["LLMTRAIN_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    torch.set_num_threads(1)
    yield open_world()
    close_world()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a tokenizer, conversations and texts."""
    make_tokenizer(tmp_path / "tokenizer")
    make_chats(tmp_path / "chats.jsonl")
    make_texts(tmp_path / "texts.jsonl")
    return tmp_path


@pytest.fixture
def run(world: World) -> Callable[[dict[str, Any]], Ending]:
    """Trains a config, given as a nested dict, in this process."""
    return lambda config: train(Resolved(Config.from_dict(config), {}, []), world)
