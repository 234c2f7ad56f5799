"""Loading the tokenizer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from llmtrain.config import ModelConfig
from llmtrain.data.tokenizer import load_tokenizer, pad_id
from llmtrain.errors import UserError
from tests.tiny import WORDS, make_tokenizer


def load(folder: Path | str, **model: Any) -> PreTrainedTokenizerBase:
    settings = ModelConfig(model_type="qwen3", tokenizer_name_or_path=str(folder), **model)
    config: Any = SimpleNamespace(model=settings, training=SimpleNamespace(stage="pt"))
    return load_tokenizer(config)


@pytest.mark.parametrize(("pad", "filled"), [("<pad>", "<pad>"), ("</s>", "</s>"), (None, "</s>")])
def test_padding_is_filled_with_pad_or_else_eos(tmp_path: Path, pad: str | None, filled: str) -> None:
    assert pad_id(load(make_tokenizer(tmp_path, pad=pad))) == WORDS.index(filled)


def test_a_tokenizer_without_end_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.tokenizer_name_or_path: .*no end-of-sequence token"):
        load(make_tokenizer(tmp_path, eos=None))


@pytest.mark.parametrize("empty", [False, True])
def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: bool) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = tmp_path if empty else tmp_path / "nowhere"
    with pytest.raises(UserError, match=rf"model\.tokenizer_name_or_path: .*{folder.name}"):
        load(folder)


def test_the_models_folder_is_the_default(tmp_path: Path) -> None:
    model = ModelConfig(model_name_or_path=str(make_tokenizer(tmp_path)))
    config: Any = SimpleNamespace(model=model, training=SimpleNamespace(stage="pt"))
    assert load_tokenizer(config).eos_token == "</s>"


def test_added_tokens_are_one_token_each_and_leave_the_special_ones(tmp_path: Path) -> None:
    before = load(make_tokenizer(tmp_path))
    tokenizer = load(tmp_path, add_tokens=["w1 w2"], add_special_tokens=["<new>"])
    ids = tokenizer("w1 w2 <new> w3", add_special_tokens=False)["input_ids"]
    assert ids == [len(WORDS), len(WORDS) + 1, WORDS.index("w3")]
    assert set(tokenizer.all_special_ids) == {*before.all_special_ids, len(WORDS) + 1}
