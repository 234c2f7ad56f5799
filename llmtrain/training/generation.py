"""The generation_config of an export: a model must stop where it was taught to stop."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from llmtrain.config import Config
from llmtrain.data.sample import IGNORED


def generation_config(
    config: Config, hf_config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, dataset: Any
) -> GenerationConfig:
    """The source folder's settings, or the tokenizer's tokens; fine-tuning adds the token that ends an answer."""
    folder = config.model.model_name_or_path
    if folder is not None and (Path(folder) / "generation_config.json").is_file():
        generation = GenerationConfig.from_pretrained(folder)
    else:
        generation = GenerationConfig.from_model_config(hf_config)
    ends = _as_list(generation.eos_token_id)
    if not ends and tokenizer.eos_token_id is not None:
        ends = [tokenizer.eos_token_id]
    if config.training.stage == "sft":
        ends += [token for token in answer_ends(dataset, set(tokenizer.all_special_ids)) if token not in ends]
    generation.eos_token_id = ends[0] if len(ends) == 1 else ends or None
    if generation.pad_token_id is None:
        generation.pad_token_id = (
            tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        )
    return generation


def answer_ends(dataset: Any, special: set[int], samples: int = 100) -> list[int]:
    """Special tokens that close the answers of a chat dataset, found where supervision ends; cut answers have none."""
    found: Counter[int] = Counter()
    for index in dataset.order(0, shuffle=False, seed=0)[:samples].tolist():
        targets = dataset[index].targets
        supervised = targets[targets != IGNORED]
        if len(supervised) and int(supervised[-1]) in special:
            found[int(supervised[-1])] += 1
    return [token for token, _ in found.most_common()]


def _as_list(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)
