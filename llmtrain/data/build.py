"""The datasets of a run, from its config."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import datasets
from transformers import PreTrainedTokenizerBase

from llmtrain.config import Config
from llmtrain.data.blending import BlendRecipe
from llmtrain.data.mixing import MixtureRecipe
from llmtrain.data.recipe import Datasets
from llmtrain.data.streams import StreamRecipe


def build_datasets(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    *,
    global_batch: int,
    main_first: Callable[[], AbstractContextManager[None]],
    is_main: bool,
) -> Datasets:
    """Reads, splits, tokenises, mixes. Inside `main_first` the main process fills the cache, the others then find it.

    `global_batch` counts samples; where a run's order is drawn as a whole, it says how many are needed.

    Raises:
        UserError: anything wrong with the files or their rows.
    """
    if not is_main:
        datasets.disable_progress_bars()
    # Only the one that goes first tokenises again; the others take what it has made.
    data = config.data if is_main else config.data.model_copy(update={"overwrite_cache": False})
    with main_first():
        if data.data_manager_type == "mg":
            steps = config.training.max_steps
            return BlendRecipe(config, data, tokenizer).build(steps * global_batch if steps > 0 else None)
        recipe = StreamRecipe if data.streaming else MixtureRecipe
        return recipe(config, data, tokenizer).build()
