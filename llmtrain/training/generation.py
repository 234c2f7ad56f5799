"""The generation_config of an export: a model must stop where it was taught to stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from llmtrain.config import Config
from llmtrain.data.chat_templates import end_ids
from llmtrain.data.sample import IGNORED, Sample


def generation_config(
    config: Config, hf_config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, dataset: Any
) -> GenerationConfig:
    """The source folder's settings, or the tokenizer's tokens; fine-tuning adds the tokens that end an answer."""
    generation = _source_settings(config, hf_config)
    ends = _stops(generation, tokenizer)
    if config.training.stage == "sft":
        taught = [*end_ids(tokenizer), *answer_ends(dataset.first_samples(), set(tokenizer.all_special_ids))]
        ends = list(dict.fromkeys([*ends, *taught]))
    generation.eos_token_id = ends[0] if len(ends) == 1 else ends or None
    if generation.pad_token_id is None:
        generation.pad_token_id = (
            tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        )
    return generation


def notice_of_ends(config: Config, hf_config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """What to say where a named chat template ends answers with tokens at which the source model does not stop yet."""
    stops = _stops(_source_settings(config, hf_config), tokenizer)
    new = [token for token in end_ids(tokenizer) if token not in stops]
    if config.training.stage != "sft" or not new:
        return None
    taught, known = (" and ".join(str(tokenizer.decode([token])) for token in ids) for ids in (new, stops))
    return (
        f"The chat template ends answers with {taught}, and the model as it is stops at {known}: it "
        f"learns the new end, and the export stops there too."
    )


def _source_settings(config: Config, hf_config: PreTrainedConfig) -> GenerationConfig:
    folder = config.model.model_name_or_path
    if folder is not None and (Path(folder) / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(folder)
    return GenerationConfig.from_model_config(hf_config)


def _stops(generation: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    ends = generation.eos_token_id
    if ends is None:
        ends = tokenizer.eos_token_id
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


def answer_ends(samples: Iterable[Sample], special: set[int], most: int = 100) -> list[int]:
    """Special tokens that close the answers of conversations, found where supervision ends; cut answers have none."""
    found: Counter[int] = Counter()
    for sample in islice(samples, most):
        targets = sample.targets
        learnt = np.append(targets != IGNORED, False)
        found.update(int(token) for token in targets[learnt[:-1] & ~learnt[1:]] if int(token) in special)
    return [token for token, _ in found.most_common()]
