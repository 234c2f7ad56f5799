"""Learning rates against tables worked out by hand from the definition of each schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from llmtrain.config import TrainingConfig
from llmtrain.errors import UserError
from llmtrain.training.schedule import plan_schedule
from tests.distributed.launch import metrics
from tests.tiny import tiny_config


def rates(total: int, **training: Any) -> list[float]:
    """Rates of updates 1 to `total` at a peak of 1."""
    schedule = plan_schedule(TrainingConfig(**{"lr": 1.0, "min_lr": 0.0, **training}), total)
    return [schedule.at(n) for n in range(1, total + 1)]


def test_linear_warms_up_from_the_first_update_and_ends_at_the_minimum() -> None:
    table = [0.25, 0.5, 0.75, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0]
    assert rates(10, lr_scheduler_type="linear", warmup_steps=4) == pytest.approx(table)
    raised = [0.25, 0.5, 0.75, 1.0, *(0.1 + 0.9 * x / 6 for x in (5, 4, 3, 2, 1, 0))]
    assert rates(10, lr_scheduler_type="linear", warmup_steps=4, min_lr=0.1) == pytest.approx(raised)


def test_cosine_is_the_half_wave_between_peak_and_minimum() -> None:
    table = [0.5, 1.0, *(0.2 + 0.8 * (1 + math.cos(math.pi * k / 8)) / 2 for k in range(1, 9))]
    assert rates(10, lr_scheduler_type="cosine", warmup_steps=2, min_lr=0.2) == pytest.approx(table)


def test_constant_holds_after_the_warm_up() -> None:
    assert rates(5, lr_scheduler_type="constant", warmup_steps=2) == [0.5, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("minimum", "tail"), [(0.1, [0.775, 0.55, 0.325, 0.1]), (0.0, [0.8, 0.6, 0.4, 0.2])], ids=["to 0.1", "to 0"]
)
def test_wsd_has_ten_positive_rates(minimum: float, tail: list[float]) -> None:
    """Warm-up 4, stable 2, decay 4: with a minimum of 0 no update is spent at rate 0."""
    table = rates(10, lr_scheduler_type="wsd", warmup_steps=4, decay_ratio=0.4, min_lr=minimum)
    assert table == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0, *tail])


@pytest.mark.parametrize("kind", ["linear", "cosine", "wsd"])
@pytest.mark.parametrize("warmup", [0, 1, 7, 20])
def test_rates_rise_to_the_peak_and_fall(kind: str, warmup: int) -> None:
    table = rates(30, lr_scheduler_type=kind, warmup_steps=warmup, min_lr=0.05)
    top = max(warmup, 1) - 1
    assert table[top] == max(table) == 1.0
    assert all(a < b for a, b in pairwise(table[: top + 1]))
    assert all(a >= b for a, b in pairwise(table[top:]))
    assert table[-1] == pytest.approx(0.05)
    assert min(table) > 0


def test_without_warm_up_the_first_update_is_at_the_peak() -> None:
    for kind in ("constant", "linear", "cosine", "wsd"):
        assert rates(10, lr_scheduler_type=kind, warmup_steps=0)[0] == 1.0


def test_a_ratio_is_rounded_up_to_whole_updates() -> None:
    assert rates(10, lr_scheduler_type="constant", warmup_ratio=0.03) == [1.0] * 10
    assert rates(10, lr_scheduler_type="constant", warmup_ratio=0.25)[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_the_minimum_never_lifts_a_small_rate() -> None:
    assert rates(4, lr=1e-7, min_lr=1e-6, lr_scheduler_type="cosine") == [1e-7] * 4


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"lr_scheduler_type": "linear", "warmup_steps": 11}, "11 warm-up updates, but the run has only 10"),
        (
            {"lr_scheduler_type": "wsd", "warmup_steps": 7, "decay_ratio": 0.4},
            "7 warm-up updates and 4 decay updates, but the run has only 10",
        ),
    ],
)
def test_phases_longer_than_the_run_are_refused(training: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        rates(10, **training)


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_the_schedule_counts_updates_not_micro_batches(run: Callable[..., Any], files: Path, accumulation: int) -> None:
    """48 conversations in batches of 12 are 4 updates, however a batch is split."""
    settings: dict[str, Any] = {
        "global_batch_size": 12,
        "per_device_train_batch_size": 12 // accumulation,
        "max_steps": -1,
        "num_train_epochs": 1,
        "lr_scheduler_type": "linear",
        "lr": 0.4,
        "min_lr": 0.0,
        "warmup_steps": 1,
    }
    run(tiny_config(files, "out", training=settings))
    assert [row["lr"] for row in metrics(files / "out")] == pytest.approx([0.4, 0.8 / 3, 0.4 / 3, 0.0])
