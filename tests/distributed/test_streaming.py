"""A streamed run on one rank, and the same begun on two and gone on with on one and on four."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launch import losses, run_cases
from tests.tiny import make_chats, make_texts, make_tokenizer, tiny_config

STAGES = {"pt": "texts.jsonl", "sft": "chats.jsonl"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    make_tokenizer(folder / "tokenizer")
    make_chats(folder / "chats.jsonl", conversations=44)
    make_texts(folder / "texts.jsonl", documents=60)
    return folder


def case(root: Path, stage: str, output: str, steps: int, **training: Any) -> dict[str, Any]:
    config = tiny_config(
        root,
        f"{stage}-{output}",
        data={"dataset": str(root / STAGES[stage]), "streaming": True, "buffer_size": 16, "cutoff_len": 32},
        training={"stage": stage, "max_steps": steps, "save_steps": 100, "save_total_limit": 0, **training},
    )
    return {"name": f"{stage}-{output}-{steps}", "config": config}


@pytest.fixture(scope="module")
def runs(root: Path) -> None:
    """44 conversations, 8 a step: the first run ends in the second pass."""
    run_cases(1, [case(root, stage, "straight", 12) for stage in STAGES], root)
    begin = {"per_device_train_batch_size": 2, "dataloader_num_workers": 2}
    run_cases(2, [case(root, stage, "parts", 7, **begin) for stage in STAGES], root)
    run_cases(4, [case(root, stage, "parts", 9, resume_from_checkpoint="latest") for stage in STAGES], root)
    run_cases(1, [case(root, stage, "parts", 12, resume_from_checkpoint="latest") for stage in STAGES], root)


@pytest.mark.parametrize("stage", STAGES)
def test_the_losses_are_the_same(root: Path, runs: None, stage: str) -> None:
    straight, parts = losses(root / f"{stage}-straight"), losses(root / f"{stage}-parts")
    assert len(straight) == 12
    assert parts == pytest.approx(straight, rel=1e-5)
