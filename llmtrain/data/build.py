"""The datasets of a run, from its config."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import datasets
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from llmtrain.config import Config, DataConfig
from llmtrain.data.chat import ChatDataset, build_chat
from llmtrain.data.pretraining import BlockDataset, build_blocks
from llmtrain.data.sources import read_rows
from llmtrain.errors import UserError

Prepared = BlockDataset | ChatDataset


@dataclass(frozen=True)
class Datasets:
    """Training data, held-out data if there is any, and lines for the header."""

    train: Prepared
    evaluation: Prepared | None
    summary: list[tuple[str, str]]


def build_datasets(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    *,
    main_first: Callable[[], AbstractContextManager[None]],
    is_main: bool,
) -> Datasets:
    """Reads, splits and tokenises. Inside `main_first` the main process fills the cache, the others then find it.

    Raises:
        UserError: anything wrong with the files or their rows.
    """
    if not is_main:
        datasets.disable_progress_bars()
    # Only the one that goes first tokenises again; the others take what it has made.
    data = config.data if is_main else config.data.model_copy(update={"overwrite_cache": False})
    with main_first():
        return _build(config, data, tokenizer)


def _build(config: Config, data: DataConfig, tokenizer: PreTrainedTokenizerBase) -> Datasets:
    stage = config.training.stage
    column = "text" if stage == "pt" else "messages"
    prepare = build_blocks if stage == "pt" else build_chat
    assert data.dataset is not None
    rows = read_rows(data.dataset, column, "data.dataset", data.max_samples)
    held_out: Dataset | None = None
    if data.eval_dataset is not None:
        held_out = read_rows(data.eval_dataset, column, "data.eval_dataset")
        held_name = "data.eval_dataset"
    elif data.val_size:
        rows, held_out = _split(rows, data.val_size, config.training.seed)
        held_name = "data.val_size"
    train, summary = prepare(rows, tokenizer, data, "data.dataset")
    if held_out is None:
        return Datasets(train, None, summary)
    evaluation, more = prepare(held_out, tokenizer, data, held_name)
    return Datasets(train, evaluation, [*summary, *more])


def _split(rows: Dataset, val_size: float, seed: int) -> tuple[Dataset, Dataset]:
    """Rows drawn by seed, a count or a share (at least one); both parts keep the source's order."""
    count = int(val_size) if val_size >= 1 else max(1, round(val_size * len(rows)))
    if count >= len(rows):
        raise UserError(f"data.val_size takes {count} of {len(rows)} rows; none is left to train on.")
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows.select(drawn[count:].sort().values.tolist()), rows.select(drawn[:count].sort().values.tolist())
