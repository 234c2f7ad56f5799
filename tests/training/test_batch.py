"""Batch arithmetic: what is derived, and what does not multiply up."""

from __future__ import annotations

from typing import Any

import pytest

from llmtrain.config import TrainingConfig
from llmtrain.errors import UserError
from llmtrain.training.batch import BatchPlan, plan_batch


def plan(ranks: int, **training: Any) -> BatchPlan:
    return plan_batch(TrainingConfig(**training), ranks)


@pytest.mark.parametrize(
    ("ranks", "micro", "accumulation"), [(1, 8, 1), (1, 4, 2), (1, 1, 8), (2, 2, 2), (4, 2, 1), (4, 1, 2), (8, 1, 1)]
)
def test_accumulation_follows_from_the_global_batch(ranks: int, micro: int, accumulation: int) -> None:
    found = plan(ranks, global_batch_size=8, per_device_train_batch_size=micro)
    assert found == BatchPlan(micro, accumulation, ranks)
    assert found.total == 8


def test_without_a_global_batch_it_is_the_product() -> None:
    assert plan(4, per_device_train_batch_size=2, gradient_accumulation_steps=3).total == 24
    assert plan(4, per_device_train_batch_size=2).total == 8


def test_all_three_may_be_given_if_they_agree() -> None:
    assert plan(2, global_batch_size=8, per_device_train_batch_size=2, gradient_accumulation_steps=2).total == 8


@pytest.mark.parametrize(
    ("ranks", "training", "message"),
    [
        (4, {"global_batch_size": 10}, "make steps of 4. Use 8 or 12"),
        (4, {"global_batch_size": 2}, "make steps of 4. Use 4, another size"),
        (2, {"global_batch_size": 8, "gradient_accumulation_steps": 3}, "Leave one of the two out; 4 would fit"),
    ],
)
def test_sizes_that_do_not_multiply_up_are_told_what_would(ranks: int, training: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(ranks, per_device_train_batch_size=1, **training)
