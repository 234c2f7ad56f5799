"""The loaders of a run, from its config."""

from __future__ import annotations

from typing import Any

from llmtrain.config import Config
from llmtrain.data.loader import Loader
from llmtrain.data.recipe import Datasets, row_layout
from llmtrain.data.streaming import StreamData, StreamLoader
from llmtrain.training.batch import BatchPlan


def training_loader(
    config: Config, datasets: Datasets, batch: BatchPlan, *, rank: int, padding: int, pin_memory: bool = False
) -> Loader | StreamLoader:
    """`padding`: the id that fills rows up.

    Raises:
        UserError: an epoch without any batch.
    """
    training = config.training
    if isinstance(datasets.train, StreamData):
        return StreamLoader(
            datasets.train,
            global_batch_size=batch.total,
            micro_batch_size=batch.micro,
            num_workers=training.dataloader_num_workers,
            prefetch_factor=training.dataloader_prefetch_factor,
            pin_memory=training.dataloader_pin_memory and pin_memory,
            **_of_rank(config, batch, rank, padding),
        )
    return Loader(
        datasets.train,
        global_batch_size=batch.total,
        micro_batch_size=batch.micro,
        seed=training.seed,
        shuffle=not training.disable_shuffling,
        drop_last=training.dataloader_drop_last,
        num_workers=training.dataloader_num_workers,
        prefetch_factor=training.dataloader_prefetch_factor,
        pin_memory=training.dataloader_pin_memory and pin_memory,
        persistent_workers=training.dataloader_persistent_workers,
        whole_run=datasets.whole_run,
        **_of_rank(config, batch, rank, padding),
    )


def evaluation_loaders(
    config: Config, datasets: Datasets, batch: BatchPlan, *, rank: int, padding: int
) -> dict[str, Loader]:
    """One for each held-out dataset, by its name."""
    micro = config.training.per_device_eval_batch_size or batch.micro
    return {
        name: Loader(
            samples,
            global_batch_size=micro * batch.data_ranks,
            micro_batch_size=micro,
            seed=config.training.seed,
            shuffle=False,
            drop_last=False,
            **_of_rank(config, batch, rank, padding),
        )
        for name, samples in datasets.evaluation.items()
    }


def _of_rank(config: Config, batch: BatchPlan, rank: int, padding: int) -> dict[str, Any]:
    return {
        "dp_rank": rank,
        "dp_size": batch.data_ranks,
        "pad_id": padding,
        "collation": row_layout(config).collation,
    }
