"""A run over Megatron's data, stopped and gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launch import metrics
from tests.models.test_export import Run
from tests.tiny import tiny_config


def config(files: Path, output: str, **training: Any) -> dict[str, Any]:
    data = {"dataset": str(files / "texts.jsonl"), "data_manager_type": "mg", "cutoff_len": 32, "split": "8,2"}
    settings = {"stage": "pt", "max_steps": 12, "save_steps": 5, "eval_steps": 6, **training}
    return tiny_config(files, output, data=data, training=settings)


def losses(files: Path, output: str) -> list[float]:
    return [row["loss"] for row in metrics(files / output) if "loss" in row]


@pytest.mark.parametrize("workers", [0, 2])
def test_it_goes_on_with_the_sample_it_stopped_before(run: Run, files: Path, workers: int) -> None:
    """32 documents of 5 to 60 words: 12 steps of 8 samples are some three passes."""
    run(config(files, "straight"))
    run(config(files, "parts", max_steps=11, dataloader_num_workers=workers))
    run(config(files, "parts", resume_from_checkpoint="latest", dataloader_num_workers=workers))
    assert len(losses(files, "straight")) == 12
    assert losses(files, "parts") == losses(files, "straight")
    held_out = [row["eval_loss"] for row in metrics(files / "straight") if "eval_loss" in row]
    assert len(held_out) == 3


def test_by_passes_the_run_is_one_sequence(run: Run, files: Path) -> None:
    ending = run(config(files, "out", max_steps=-1, num_train_epochs=2))
    assert ending.step == len(losses(files, "out")) > 2
