"""What the tests of llmtrain.data share: a cache of their own, and a way from rows to datasets."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmtrain.config import DataConfig, ModelConfig
from llmtrain.data.build import build_datasets
from llmtrain.data.recipe import Datasets
from llmtrain.data.tokenizer import load_tokenizer
from tests.tiny import TEMPLATE, WORDS, make_tokenizer, write_jsonl

Build = Callable[..., Datasets]


@pytest.fixture(autouse=True)
def cache_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMTRAIN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(rows, stage, tokenizer=..., source=..., seed=..., **data): the datasets of a run over these rows.

    `template` is that of the tokenizer, `named` the one that `data.template` asks for.
    """

    def run(
        rows: list[dict[str, Any]] | None = None,
        stage: str = "sft",
        *,
        template: str | None = TEMPLATE,
        tokenizer: Path | None = None,
        source: Any = None,
        seed: int = 1,
        model: dict[str, Any] | None = None,
        named: str | None = None,
        steps: int = -1,
        epochs: float = 1.0,
        batch: int = 1,
        **data: Any,
    ) -> Datasets:
        if tokenizer is None:
            tokenizer = make_tokenizer(tmp_path / "tokenizer", template=template)
        if source is None:
            assert rows is not None
            source = str(write_jsonl(tmp_path / "rows.jsonl", rows))
        config: Any = SimpleNamespace(
            model=ModelConfig(model_type="qwen3", tokenizer_name_or_path=str(tokenizer), **(model or {})),
            data=DataConfig(dataset=source, template=named, **data),
            training=SimpleNamespace(
                stage=stage, seed=seed, disable_shuffling=False, max_steps=steps, num_train_epochs=epochs
            ),
        )
        return build_datasets(config, load_tokenizer(config), global_batch=batch, main_first=nullcontext, is_main=True)

    return run


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def chat(*texts: str) -> dict[str, Any]:
    """A conversation in which user and assistant take turns."""
    return {"messages": [(user, assistant)[i % 2](text) for i, text in enumerate(texts)]}


def read(ids: Any) -> str:
    """Ids as words; what is not learned is a dot."""
    return " ".join(WORDS[i] if i >= 0 else "." for i in ids)


def edit_tokenizer(folder: Path, **values: Any) -> Path:
    """Changes keys of tokenizer.json."""
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **values}), encoding="utf-8")
    return folder


BOS_FIRST = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
}
